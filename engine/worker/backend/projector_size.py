"""The memory that a projector will take, by the header of its file."""

from specllama.engine.options import EngineOptions
from specllama.engine.wire.devices import CPU, DeviceUse
from specllama.engine.worker.backend.library import devices
from specllama.engine.worker.backend.projector import projector_header, projector_kinds

MOST_TOKENS = 4096
"""Of an image of any size, if neither the file nor an option says."""
MERGED = 4
"""Patches that such a projector makes one token of."""
_ANY_SIZE = ("qwen", "glm4v", "mimovl", "exaone4_5", "youtuvl")
"""The beginnings of kinds that take images of any size."""


def projector_uses(options: EngineOptions) -> list[DeviceUse]:
    """What the projector takes of its device: none without one. Its weights are known; what it
    computes the largest image with is estimated. Raises `BackendError` for no projector."""
    media = options.media
    if not media.mmproj:
        return []
    header = projector_header(media.mmproj)

    def number(key: str) -> int:
        value = header.values.get(f"clip.vision.{key}", 0)
        return value if isinstance(value, int) else 0

    patch = max(1, number("patch_size"))
    n_patches = (number("image_size") // patch) ** 2
    if media.image_max_tokens > 0:
        n_patches = max(n_patches, media.image_max_tokens * MERGED)
    elif any(kind.startswith(_ANY_SIZE) for kind in projector_kinds(header)):
        n_patches = max(n_patches, MOST_TOKENS * MERGED)
    n_numbers = 2 * number("feed_forward_length") + 8 * number("embedding_length")
    return [DeviceUse(name=_place(options), compute=header.n_bytes + 4 * n_patches * n_numbers)]


def _place(options: EngineOptions) -> str:
    names = options.compute.device
    if not options.media.mmproj_offload or list(names) == ["none"]:
        return CPU
    return names[0] if names else next((name for name, *_ in devices()), CPU)
