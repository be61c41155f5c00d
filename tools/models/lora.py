"""LoRA adapters for the models of `recipes.py`: small, random, and with a clear effect."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as WeightType
from gguf import GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from specllama.engine.shipped import MODEL_NAME
from tools.models.recipes import RECIPES, TALKER, Decoder, Recipe

Matrix = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A LoRA adapter for the model `base`, which is a name of `RECIPES` or the shipped model's.

    It adds `alpha / rank * B A` to the matrices that write into the residual stream; at scale 1 the
    added part has `gain` times their own strength. `rank` is a multiple of 32, Q8_0's block size.
    """

    file_name: str
    base: str = MODEL_NAME
    rank: int = 32
    alpha: float = 8.0
    gain: float = 1.0
    seed: int = 0


ADAPTERS: dict[str, Adapter] = {
    "lora-a": Adapter(file_name="lora-a", seed=1),
    "lora-b": Adapter(file_name="lora-b", seed=2),
    "lora-random-a": Adapter(file_name="lora-random-a", base="random", seed=1),
    "lora-random-b": Adapter(file_name="lora-random-b", base="random", seed=2),
    "lora-bench-100m": Adapter(file_name="lora-bench-100m", base="bench-100m", seed=1),
}


def write_adapter(adapter: Adapter, path: Path) -> None:
    """Writes `path` atomically. The directory must exist."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = GGUFWriter(part, "llama")
    writer.add_type("adapter")
    writer.add_name(adapter.file_name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", adapter.alpha)
    writer.add_string("adapter.lora.task_name", f"test {adapter.file_name}")
    recipe = TALKER if adapter.base == MODEL_NAME else RECIPES[adapter.base]
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{adapter.base} is no decoder")
    for name, values in _tensors(adapter, recipe.decoder):
        # Like the models' weights: a token's numbers don't depend on the rest of the batch.
        writer.add_tensor(name, quantize(values, WeightType.Q8_0), raw_dtype=WeightType.Q8_0)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _tensors(adapter: Adapter, decoder: Decoder) -> Iterator[tuple[str, Matrix]]:
    """Yields A (rank x input features) and B (output features x rank) of each matrix."""
    rng = np.random.Generator(np.random.PCG64(adapter.seed))
    for layer in range(decoder.n_layer):
        for name, n_in in (("attn_output", decoder.n_embd), ("ffn_down", decoder.n_ff)):
            a = _uniform(rng, (adapter.rank, n_in), 1 / sqrt(n_in))
            spread = adapter.gain * sqrt(adapter.rank) / adapter.alpha
            b = _uniform(rng, (decoder.n_embd, adapter.rank), spread)
            b[0] = 0  # the constant channel of tools.models.weights
            yield f"blk.{layer}.{name}.weight.lora_a", a
            yield f"blk.{layer}.{name}.weight.lora_b", b


def _uniform(rng: np.random.Generator, shape: tuple[int, int], std: float) -> Matrix:
    """Returns uniform values by exact arithmetic only, as in `tools.models.weights`."""
    values = rng.random(shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(std * sqrt(12))
    return values
