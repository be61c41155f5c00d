"""Projectors for image and audio input, for tests. All weights are random."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
from gguf import GGMLQuantizationType as WeightType
from gguf import GGUFWriter
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

NORM_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of an encoder. The last layer of "mlp" exists but isn't used, as in LLaVA."""

    n_embd: int = 32
    n_head: int = 2
    n_ff: int = 64
    n_layer: int = 2
    weight_type: WeightType = WeightType.F32


@dataclass(frozen=True, kw_only=True)
class Eye:
    """A vision encoder and its projector, of one of llama.cpp's kinds: for square images of
    `image_size` pixels ("mlp", "gemma3", "internvl"), or of any size ("qwen2vl_merger").

    "gemma3" and "internvl" make one token from `merge` by `merge` patches; the tokens of a "gemma3"
    image attend to each other. "qwen2vl_merger" makes one token from two by two patches, with
    positions in two dimensions. "internvl" encodes several images at once, and a large image as up
    to four slices. `tiles` are sizes in pixels ("mlp" only): a large image becomes the slices of
    the best-matching size, plus the whole image.
    """

    kind: Literal["mlp", "gemma3", "internvl", "qwen2vl_merger"]
    image_size: int
    patch_size: int = 8
    merge: int = 1
    tiles: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ear:
    """An audio encoder and its projector, as in Ultravox: `stack` frames become one token, in
    chunks of 30 seconds."""

    n_mel: int = 128
    stack: int = 20


@dataclass(frozen=True, kw_only=True)
class ProjectorRecipe:
    """One projector, for models with `n_embd`. See `Recipe`."""

    file_name: str
    description: str
    n_embd: int
    eye: Eye | None = None
    ear: Ear | None = None
    shape: Shape = Shape()
    seed: int = 0


def add_shape(writer: GGUFWriter, recipe: ProjectorRecipe) -> None:
    """Writes the metadata of a projector's file."""
    writer.add_type("mmproj")
    writer.add_bool("clip.use_gelu", True)
    if (eye := recipe.eye) is not None:
        writer.add_bool("clip.has_vision_encoder", True)
        writer.add_string("clip.vision.projector_type", eye.kind)
        _add_encoder_shape(writer, "vision", recipe)
        writer.add_uint32("clip.vision.image_size", eye.image_size)
        writer.add_uint32("clip.vision.patch_size", eye.patch_size)
        writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
        writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
        if eye.kind in ("gemma3", "internvl"):
            writer.add_uint32("clip.vision.projector.scale_factor", eye.merge)
        if eye.kind == "internvl":
            writer.add_uint32("clip.vision.preproc_max_tiles", 4)
        if eye.tiles:
            sides = [side for tile in eye.tiles for side in tile]
            writer.add_array("clip.vision.image_grid_pinpoints", sides)
    if (ear := recipe.ear) is not None:
        writer.add_bool("clip.has_audio_encoder", True)
        writer.add_string("clip.audio.projector_type", "ultravox")
        _add_encoder_shape(writer, "audio", recipe)
        writer.add_uint32("clip.audio.num_mel_bins", ear.n_mel)
        writer.add_uint32("clip.audio.projector.stack_factor", ear.stack)


def _add_encoder_shape(writer: GGUFWriter, sense: str, recipe: ProjectorRecipe) -> None:
    shape = recipe.shape
    writer.add_uint32(f"clip.{sense}.embedding_length", shape.n_embd)
    writer.add_uint32(f"clip.{sense}.attention.head_count", shape.n_head)
    writer.add_uint32(f"clip.{sense}.feed_forward_length", shape.n_ff)
    writer.add_uint32(f"clip.{sense}.block_count", shape.n_layer)
    writer.add_uint32(f"clip.{sense}.projection_dim", recipe.n_embd)
    writer.add_float32(f"clip.{sense}.attention.layer_norm_epsilon", NORM_EPSILON)


Tensor = tuple[str, Matrix, WeightType]


class _Maker:
    """Makes the values of one projector's tensors, in their order."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def values(self, *shape: int, gain: float = 1.0) -> Matrix:
        """Returns uniform values. Along all axes but the first, they map an input of unit variance
        to an output of the variance `gain` squared."""
        values = self._rng.random(shape, dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(gain * sqrt(12 / np.prod(shape[1:], initial=1)))
        return values

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> Tensor:
        return f"{name}.weight", self.values(n_out, n_in, gain=gain), self.shape.weight_type

    def linear(self, name: str, n_out: int, n_in: int) -> Iterator[Tensor]:
        yield self.matrix(name, n_out, n_in)
        yield f"{name}.bias", self.values(n_out, gain=0.1), WeightType.F32

    def norm(self, name: str, n: int = 0, *, biased: bool = True) -> Iterator[Tensor]:
        n = n or self.shape.n_embd
        yield f"{name}.weight", np.ones(n, np.float32), WeightType.F32
        if biased:
            yield f"{name}.bias", np.zeros(n, np.float32), WeightType.F32


def tensors(recipe: ProjectorRecipe) -> Iterator[Tensor]:
    """Yields name, values (output features x input features) and type of each tensor."""
    make = _Maker(recipe.shape, recipe.seed)
    if recipe.eye is not None:
        yield from _eye(make, recipe.eye, recipe.n_embd)
    if recipe.ear is not None:
        yield from _ear(make, recipe.ear, recipe.n_embd)


def _layers(make: _Maker, prefix: str, *, key_bias: bool = True) -> Iterator[Tensor]:
    n_embd, n_ff = make.shape.n_embd, make.shape.n_ff
    for layer in range(make.shape.n_layer):
        block = f"{prefix}.blk.{layer}."
        yield from make.norm(block + "ln1")
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            made = make.linear(block + name, n_embd, n_embd)
            yield next(made)
            if key_bias or name != "attn_k":
                yield from made
        yield from make.norm(block + "ln2")
        yield from make.linear(block + "ffn_up", n_ff, n_embd)
        yield from make.linear(block + "ffn_down", n_embd, n_ff)
    yield from make.norm(f"{prefix}.post_ln")


def _eye(make: _Maker, eye: Eye, n_embd: int) -> Iterator[Tensor]:
    side, n_inside, n_ff = eye.patch_size, make.shape.n_embd, make.shape.n_ff
    patch = "v.patch_embd.weight"
    yield patch, make.values(n_inside, 3, side, side), WeightType.F32
    if eye.kind == "qwen2vl_merger":
        # One for each frame of a pair; both frames of an image are the same.
        yield f"{patch}.1", make.values(n_inside, 3, side, side), WeightType.F32
    else:
        n_patches = (eye.image_size // side) ** 2
        if eye.kind == "internvl":
            yield "v.class_embd", make.values(n_inside), WeightType.F32
            n_patches += 1
        yield make.matrix("v.position_embd", n_patches, n_inside, gain=sqrt(n_inside) / 2)
    yield from _layers(make, "v")
    if eye.kind == "gemma3":
        yield from make.norm("mm.soft_emb_norm", biased=False)
        # Stored in reverse order.
        projection = np.ascontiguousarray(make.values(n_embd, n_inside).T)
        yield "mm.input_projection.weight", projection, WeightType.F32
        return
    first, second, n_inner = "mm.0", "mm.2", n_inside
    if eye.kind == "qwen2vl_merger":
        n_inner *= 4
    if eye.kind == "internvl":
        first, second, n_inner = "mm.model.mlp.1", "mm.model.mlp.3", n_inside * eye.merge**2
        yield from make.norm("mm.model.mlp.0", n_inner)
    yield from make.linear(first, n_ff, n_inner)
    # Like a token's embedding in these models, whose first channel is constant.
    weight, bias = make.values(n_embd, n_ff, gain=1.5), np.zeros(n_embd, np.float32)
    weight[0] = 0
    bias[0] = sqrt(n_embd)
    yield f"{second}.weight", weight, WeightType.F32
    yield f"{second}.bias", bias, WeightType.F32


def _ear(make: _Maker, ear: Ear, n_embd: int) -> Iterator[Tensor]:
    n_inside, n_ff = make.shape.n_embd, make.shape.n_ff
    for number, n_in in ((1, ear.n_mel), (2, n_inside)):
        name = f"a.conv1d.{number}"
        # The content of a sound weighs more than its time.
        yield f"{name}.weight", make.values(n_inside, n_in, 3, gain=3.0), WeightType.F16
        yield f"{name}.bias", make.values(n_inside, 1, gain=0.1), WeightType.F32
    n_positions = 1500  # 30 seconds in steps of 20 milliseconds
    yield make.matrix("a.position_embd", n_positions, n_inside, gain=sqrt(n_inside) / 5)
    yield from _layers(make, "a", key_bias=False)
    n_stacked = n_inside * ear.stack
    yield from make.norm("mm.a.norm_pre", n_stacked, biased=False)
    yield make.matrix("mm.a.mlp.1", 2 * n_ff, n_stacked)
    yield from make.norm("mm.a.norm_mid", n_ff, biased=False)
    yield make.matrix("mm.a.mlp.2", n_embd, n_ff)
