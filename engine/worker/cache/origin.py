"""The conditions of a KV cache's cells beside the tokens, so that copies of them are put back only
where they fit."""

from dataclasses import dataclass

import msgspec

from engine.options import EngineOptions
from engine.shipped import model_file
from engine.worker.cache import slot_file
from engine.worker.cache.prefix_cache import ALL, Key, adapters_of
from engine.worker.cache.slot_file import Origin


@dataclass(frozen=True)
class Identity:
    """A model, the options that decide how a text becomes cells, and the loaded adapters."""

    model: bytes
    settings: dict[str, str]
    adapters: list[bytes]

    @classmethod
    def of(cls, options: EngineOptions) -> "Identity":
        """Reads samples of the files. Raises OSError."""
        return cls(
            slot_file.fingerprint(model_file(options.model.model)),
            _settings(options),
            [slot_file.fingerprint(path) for path, _ in options.model.lora],
        )

    @classmethod
    def of_cells(cls, options: EngineOptions) -> "Identity":
        """The same, but with what else decides how cells are laid out in memory: for those who
        have no use for a state that llama.cpp may refuse. Raises OSError."""
        own = cls.of(options)
        layout = {
            "--flash-attn": options.compute.flash_attn,
            "--swa-full": str(options.context.swa_full),
        }
        return cls(own.model, own.settings | layout, own.adapters)

    def origin(self, key: Key, n_exact: int = ALL) -> Origin:
        """The origin of a text evaluated here, without its owner."""
        adapters = [(self.adapters[id], scale) for id, scale in adapters_of(key)]
        return Origin(self.model, self.settings, adapters, n_exact)

    def fits(self, origin: Origin) -> bool:
        """True if it is the same model with the same settings."""
        return origin.model == self.model and origin.settings == self.settings

    def key(self, origin: Origin) -> Key | None:
        """The adapters of a saved text, by their ids here; None if one is not loaded."""
        found = []
        for adapter, scale in origin.adapters:
            if adapter not in self.adapters:
                return None
            found.append((self.adapters.index(adapter), scale))
        return tuple(sorted(found))


def _settings(options: EngineOptions) -> dict[str, str]:
    """The options that decide how a text becomes cells of the KV cache."""
    deciding = {"override_kv": options.model.override_kv, **msgspec.structs.asdict(options.rope)}
    settings = {"--" + name.replace("_", "-"): str(value) for name, value in deciding.items()}
    model = options.model
    vectors = [(path, 1.0) for path in model.control_vector] + [*model.control_vector_scaled]
    settings["--control-vector"] = ", ".join(
        f"{slot_file.fingerprint(path).hex()}:{scale}" for path, scale in vectors
    )
    settings["--control-vector-layer-range"] = str(model.control_vector_layer_range)
    settings["--cache-type-k"], settings["--cache-type-v"] = options.cache_types()
    return settings | {"--kv-unified": "on" if options.unified_kv_cache() else "off"}
