"""The scales of the LoRA adapters: the server's defaults and the scales of a request."""

import msgspec

from specllama.engine.options import EngineOptions
from specllama.engine.wire.replies import Adapter
from specllama.engine.worker.backend import Model
from specllama.engine.worker.cache.texts import OWNER, Key


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
        """The scale of every adapter for a request with the scales `wanted` (empty: the server's
        scales). Unknown ids are ignored."""
        if not wanted:
            return [(adapter.id, adapter.scale) for adapter in self.adapters]
        scales = {adapter.id: 0.0 for adapter in self.adapters}
        for id, scale in wanted:
            if id in scales:
                scales[id] = scale
        return list(scales.items())

    def set(self, scales: list[tuple[int, float]]) -> None:
        """Set the server's scales, for later requests; 0 for adapters that are not named."""
        new = dict(self.resolve(scales)) if scales else {}
        self.adapters = [
            msgspec.structs.replace(adapter, scale=new.get(adapter.id, 0.0))
            for adapter in self.adapters
        ]


def key_of(scales: list[tuple[int, float]], owner: int = 0) -> Key:
    """The cache key of a text: the adapters with a scale other than 0, and the owner of the text
    (0: anyone may reuse it)."""
    adapters = tuple((id, scale) for id, scale in scales if scale)
    return (*adapters, (OWNER, float(owner))) if owner else adapters
