"""Determines the memory that a model and a context will take on each device, without allocating it.

llama.cpp makes both from the header of the file, without memory for weights and KV cache
(`no_alloc`), and logs the sizes. So the result includes every kind of memory exactly: recurrent
states, sliding windows, shared layers.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from llama_cpp import llama_cpp as C

from specllama.engine.options import EngineOptions
from specllama.engine.wire.devices import CPU, DeviceUse
from specllama.engine.worker.backend import room
from specllama.engine.worker.backend.context_setup import context_params
from specllama.engine.worker.backend.library import captured_by, devices, failure, forget_errors
from specllama.engine.worker.backend.memory import Holdings
from specllama.engine.worker.backend.model import ModelFacts
from specllama.engine.worker.backend.model_params import kv_overrides, model_params

MEASURED = 1 << 20
"""Maximum number of tokens of a measured context, as llama.cpp's own data for each cell takes
memory even in a dry run. Larger contexts are extrapolated."""
FEW = 4096
"""Tokens of a context that fits every device."""
_NO_VOCABULARY = "tokenizer.ggml.model=str:no_vocab"
_CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB")
_ASSIGNED = re.compile(r"load_tensors: layer +(\d+) assigned to device ([^\s,]+)")
_TENSOR = re.compile(r"- tensor split +\d+: +(\S+) .* ([\d.]+) MiB")
_BLOCK = re.compile(r"blk\.(\d+)\.")
_INPUTS = ("token_", "position_", "per_layer_token_")
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_TRACE = "LLAMA_TRACE"
"""The environment variable that makes llama.cpp log each tensor."""
_CACHED = re.compile(r"llama_kv_cache: layer +\d+: dev = (\S+)")


class Planned(Holdings):
    """The memory that llama.cpp would allocate, according to its log."""

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[str, int] = defaultdict(int)  # of the next KV cache, by device
        self._places: dict[int, str] = {}  # device of each layer
        self._tensors: dict[str, float] = {}  # MiB, by name

    def note(self, line: str) -> None:
        """Read a line of llama.cpp's log. The devices of a KV cache's layers precede the line with
        its size."""
        super().note(line)
        if found := _CACHED.search(line):
            self._layers[found[1]] += 1
        elif found := _CACHE.search(line):
            n_layers = sum(self._layers.values())
            for name, n in self._layers.items():
                self.buffers[name, "KV"] += float(found[1]) * n / n_layers
            self._layers.clear()
        elif found := _ASSIGNED.search(line):
            self._places[int(found[1])] = found[2]
        elif found := _TENSOR.search(line):
            self._tensors[found[1]] = float(found[2])

    def place_weights(self, n_bytes: int) -> None:
        """Assign the weights of each layer to its device, those of the input to the CPU, and those
        of the output to the device of the last layer. `n_bytes` is the exact total."""
        total = sum(self._tensors.values())
        scale = n_bytes / (1 << 20) / total if total else 0.0
        last = self._places.get(max(self._places, default=0), CPU)
        for name, size in self._tensors.items():
            layer = _BLOCK.match(name)
            place = self._places.get(int(layer[1]), CPU) if layer else last
            self.buffers[CPU if name.startswith(_INPUTS) else place, "model"] += size * scale
        if last != CPU and _OUTPUT not in self._tensors:  # a copy of the input's weights
            self.buffers[last, "model"] += self._tensors.get(_EMBEDDING, 0.0) * scale


class DryRun(ModelFacts):
    """A model without allocated weights. Raises `BackendError` if llama.cpp can't make it."""

    def __init__(self, path: str, options: EngineOptions) -> None:
        self._planned = Planned()
        self._measured: dict[object, list[DeviceUse]] = {}
        self._mosts: dict[object, int] = {}
        # Loading the vocabulary takes most of the time and isn't needed. But the size of the
        # vocabulary is needed, and some files don't contain it separately.
        given = options.model.override_kv
        with captured_by(self._planned), _traced():
            forget_errors()
            self._model = self._load(path, options, (*given, _NO_VOCABULARY))
            if not self._model:
                self._planned.begin_model()
                forget_errors()
                self._model = self._load(path, options, given)
        if not self._model:
            raise failure(f"cannot measure the model {path!r}")
        self._planned.place_weights(self.size)

    def _load(self, path: str, options: EngineOptions, overrides: tuple[str, ...]) -> object:
        params, _kept = model_params(options)
        array = kv_overrides(overrides)
        if array is not None:
            params.kv_overrides = array
        params.no_alloc, params.load_mode = True, C.LLAMA_LOAD_MODE_NONE
        model: object = C.llama_model_load_from_file(os.fsencode(path), params)
        return model

    @property
    def is_repacked(self) -> bool:
        """True if weights are rearranged for the CPU, which takes additional memory."""
        return any("REPACK" in name for name, use in self._planned.buffers if use == "model")

    def measure(
        self, options: EngineOptions, n_seq: int, unified: bool, n_ctx: int
    ) -> list[DeviceUse]:
        """The memory of each device, including the CPU, with a context of `n_ctx` tokens. Raises
        `BackendError` if such a context is impossible. `options` must be those of the model, except
        for the types of the cache."""
        most = self._most(options, n_seq, unified) if n_ctx > FEW and devices() else MEASURED
        if n_ctx <= most:
            return self._measure(options, n_seq, unified, n_ctx)
        half = self._measure(options, n_seq, unified, most // 2)
        full = self._measure(options, n_seq, unified, most)
        factor = (n_ctx - most) / (most - most // 2)
        return [_beyond(*pair, factor) for pair in zip(half, full, strict=True)]

    def _most(self, options: EngineOptions, n_seq: int, unified: bool) -> int:
        """The largest context to measure, in tokens: llama.cpp ends the process if a device doesn't
        support the size of a context's tensors."""
        key = (options.cache_types(), n_seq, unified)
        if key not in self._mosts:
            self._measure(options, n_seq, unified, FEW)
            step = room.STEP * n_seq  # llama.cpp rounds up
            most = int(min(MEASURED, room.most_in_tensors(self._planned)))
            self._mosts[key] = max(FEW, most // step * step)
        return self._mosts[key]

    def _measure(
        self, options: EngineOptions, n_seq: int, unified: bool, n_ctx: int
    ) -> list[DeviceUse]:
        key = (options.cache_types(), n_seq, unified, n_ctx)
        if key in self._measured:
            return self._measured[key]
        params = context_params(self, options, n_seq, unified)
        params.n_ctx = max(n_ctx, n_seq)  # as llama.cpp asserts
        self._planned.begin_context(n_ctx)
        forget_errors()
        with captured_by(self._planned):
            context = C.llama_init_from_model(self._model, params)
        if not context:
            raise failure("cannot measure the context")
        C.llama_free(context)
        uses = self._planned.by_device({name: text for name, text, *_ in devices()})
        self._measured[key] = uses
        return uses

    def close(self) -> None:
        if self._model:
            with captured_by(self._planned):
                C.llama_model_free(self._model)
            self._model = None


@contextmanager
def _traced() -> Iterator[None]:
    before = os.environ.get(_TRACE)
    os.environ[_TRACE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TRACE]
        else:
            os.environ[_TRACE] = before


def _beyond(half: DeviceUse, full: DeviceUse, factor: float) -> DeviceUse:
    """Extrapolates the line through both, by `factor` times their distance beyond `full`."""
    return DeviceUse(
        name=full.name,
        description=full.description,
        n_layers=full.n_layers,
        model=full.model,
        kv_cache=int(full.kv_cache + factor * (full.kv_cache - half.kv_cache)),
        compute=int(full.compute + factor * max(0, full.compute - half.compute)),
    )
