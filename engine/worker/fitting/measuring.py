"""Measures a model together with its draft model and its projector."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from specllama.engine.options import EngineOptions, replaced
from specllama.engine.wire.devices import CPU, Bytes, DeviceUse
from specllama.engine.worker.backend import sequence_count, sequence_ids
from specllama.engine.worker.backend.dry_run import DryRun
from specllama.engine.worker.backend.projector import projector_uses
from specllama.engine.worker.fitting.choice import AUTO


class Measuring:
    """The memory that a model takes with `options`, for any numbers of tokens and layers.

    Raises `BackendError` for a model that can't be measured, which can't be loaded either.
    """

    def __init__(self, path: str, options: EngineOptions) -> None:
        self._path = path
        self._options = options
        self._n_layers = AUTO
        self._model = DryRun(path, options)
        self._draft: DryRun | None = None
        if options.draft.model_draft:
            self._draft = DryRun(options.draft.model_draft, _draft_options(options))
        self._of_projector = projector_uses(options)
        embeds = options.embedding.embeds()
        of_model = sequence_count if embeds else sequence_ids
        self._n_seq = of_model(self._model, options)
        self._unified = embeds or options.unified_kv_cache()

    @property
    def n_ctx(self) -> int:
        """The size of the context of `options`, in tokens."""
        return self._options.context_size() or self._model.n_ctx_train

    @property
    def n_layer(self) -> int:
        """The number of layers of the model, including its output."""
        return self._model.n_layer + 1

    @property
    def n_parts(self) -> int:
        """The number of equal parts of the KV cache."""
        return 1 if self._unified else self._n_seq

    @property
    def is_repacked(self) -> bool:
        """True if the weights in the CPU's memory are rearranged copies."""
        return self._model.is_repacked

    def uses(
        self, n_ctx: int, n_layers: int = AUTO, options: EngineOptions | None = None
    ) -> list[DeviceUse]:
        """The memory of every device. `options`, if given, replace those for the context."""
        if n_layers != self._n_layers:
            self._model.close()
            fewer = replaced(self._options, n_gpu_layers=n_layers)
            self._model = DryRun(self._path, fewer if n_layers != AUTO else self._options)
            self._n_layers = n_layers
        options = options or self._options
        found = self._model.measure(options, self._n_seq, self._unified, n_ctx)
        if self._draft is not None:
            of_draft = _draft_options(replaced(options, ctx_size=n_ctx))
            n_slots, unified = options.context.n_slots(), options.unified_kv_cache()
            n_ctx = of_draft.context_size()
            found += self._draft.measure(of_draft, n_slots, unified, n_ctx)
        return _summed(found + self._of_projector)

    def n_host_weights(self, n_ctx: int, n_layers: int = AUTO) -> Bytes:
        """The bytes of the model's own weights in the host's memory."""
        self.uses(n_ctx, n_layers)
        found = self._model.measure(self._options, self._n_seq, self._unified, n_ctx)
        return sum(use.model for use in found if use.name == CPU)

    def close(self) -> None:
        self._model.close()
        if self._draft is not None:
            self._draft.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _draft_options(options: EngineOptions) -> EngineOptions:
    # Only here: a start without a draft model is faster.
    from specllama.engine.worker.speculation.draft_loading import draft_options

    return draft_options(options)


def _summed(uses: Iterable[DeviceUse]) -> list[DeviceUse]:
    """The sum over all models, one entry for each device."""
    found: dict[str, DeviceUse] = {}
    for use in uses:
        other = found.get(use.name, DeviceUse(name=use.name))
        found[use.name] = DeviceUse(
            name=use.name,
            description=use.description,
            n_layers=other.n_layers + use.n_layers,
            model=other.model + use.model,
            kv_cache=other.kv_cache + use.kv_cache,
            compute=other.compute + use.compute,
        )
    return list(found.values())
