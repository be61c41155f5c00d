"""The conditions, apart from the tokens, under which KV cells were computed. Saved cells are
restored only under the same conditions."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from specllama.engine.options import EngineOptions
from specllama.engine.shipped import model_file
from specllama.engine.worker.cache import slot_file
from specllama.engine.worker.cache.media_table import SavedChunk
from specllama.engine.worker.cache.slot_file import Origin
from specllama.engine.worker.cache.texts import ALL, Key, adapters_of


@dataclass(frozen=True)
class Identity:
    """A model, the options that affect its KV cells, the loaded adapters, and the projector, if
    any."""

    model: bytes
    settings: dict[str, str]
    adapters: list[bytes]
    projector: bytes = b""

    @classmethod
    def of(cls, options: EngineOptions) -> "Identity":
        """Makes the identity of `options`, from samples of the files. Raises OSError."""
        return cls(
            slot_file.fingerprint(model_file(options.model.model)),
            _settings(options),
            [slot_file.fingerprint(path) for path, _ in options.model.lora],
            _projector(options),
        )

    @classmethod
    def of_cells(cls, options: EngineOptions) -> "Identity":
        """As `of`, with the options that affect the memory layout of cells as well, so that
        llama.cpp accepts every state with this identity. Raises OSError."""
        own = cls.of(options)
        layout = {
            "--flash-attn": options.compute.flash_attn,
            "--swa-full": str(options.context.swa_full),
        }
        return replace(own, settings=own.settings | layout)

    def origin(self, key: Key, n_exact: int = ALL, media: SequenceOf[SavedChunk] = ()) -> Origin:
        """The origin of a text evaluated with this identity, without its owner."""
        adapters = [(self.adapters[id], scale) for id, scale in adapters_of(key)]
        projector = self.projector if media else b""
        return Origin(self.model, self.settings, adapters, n_exact, projector, [*media])

    def fits(self, origin: Origin) -> bool:
        """True if `origin` has the same model and settings, and for a text with media, the same
        projector."""
        return (
            origin.model == self.model
            and origin.settings == self.settings
            and self.sees_alike(origin)
        )

    def sees_alike(self, origin: Origin) -> bool:
        """True if the text has no media, or the projector is the same."""
        return not origin.media or origin.projector == self.projector

    def key(self, origin: Origin) -> Key | None:
        """The adapters of a saved text with their present ids; None if one is not loaded."""
        found = []
        for adapter, scale in origin.adapters:
            if adapter not in self.adapters:
                return None
            found.append((self.adapters.index(adapter), scale))
        return tuple(sorted(found))


def _projector(options: EngineOptions) -> bytes:
    """A fingerprint of all that affects the embeddings of media."""
    media = options.media
    if not media.mmproj:
        return b""
    digest = blake2b(slot_file.fingerprint(media.mmproj), digest_size=16)
    digest.update(f"{media.image_min_tokens} {media.image_max_tokens}".encode())
    return digest.digest()


def _settings(options: EngineOptions) -> dict[str, str]:
    """The options that affect the contents of KV cells."""
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
