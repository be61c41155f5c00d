"""The scales of the LoRA adapters: the server's own, and those of a request."""

import msgspec

from specllama.engine.options import EngineOptions
from specllama.engine.wire.replies import Adapter
from specllama.engine.worker.backend import Model
from specllama.engine.worker.cache.prefix_cache import OWNER, Key


class LoraScales:
    """All loaded adapters. One thread may call `set` while others read."""

    def __init__(self, model: Model, options: EngineOptions) -> None:
        unused = options.model.lora_init_without_apply
        scales = [0.0 if unused else scale for _, scale in options.model.lora]
        self.adapters = [
            Adapter(id, file.path, scale, file.task_name, file.prompt_prefix)
            for id, (file, scale) in enumerate(zip(model.adapters, scales, strict=True))
        ]

    def resolve(self, wanted: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """The scale of every adapter, for a request that wants these (none: the server's own). An
        unknown id means nothing."""
        if not wanted:
            return [(adapter.id, adapter.scale) for adapter in self.adapters]
        scales = {adapter.id: 0.0 for adapter in self.adapters}
        for id, scale in wanted:
            if id in scales:
                scales[id] = scale
        return list(scales.items())

    def set(self, scales: list[tuple[int, float]]) -> None:
        """The server's own, for requests to come; 0 for adapters that are not named."""
        new = dict(self.resolve(scales)) if scales else {}
        self.adapters = [
            msgspec.structs.replace(adapter, scale=new.get(adapter.id, 0.0))
            for adapter in self.adapters
        ]


def key_of(scales: list[tuple[int, float]], owner: int = 0) -> Key:
    """The adapters, with these scales, that tokens are evaluated under, and the owner of the
    text; 0: everybody."""
    adapters = tuple((id, scale) for id, scale in scales if scale)
    return (*adapters, (OWNER, float(owner))) if owner else adapters
