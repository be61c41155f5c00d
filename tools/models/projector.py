"""Projectors, which give models eyes and ears, for tests. All weights are random."""

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
N_EMBD, N_HEAD, N_FF, N_LAYER = 32, 2, 64, 2
"""The shape of all encoders. The last layer of "mlp" is there but not used, as in LLaVA."""


@dataclass(frozen=True, kw_only=True)
class Eye:
    """A vision encoder and its projector, of one of llama.cpp's kinds: square images of
    `image_size` pixels ("mlp", "gemma3", "internvl"), or any size ("qwen2vl_merger").

    Of "gemma3" and "internvl", `merge` by `merge` patches are one token. The tokens of an image of
    "gemma3" attend to each other. Of "qwen2vl_merger", two by two are one, which have positions in
    two dimensions. "internvl" encodes several images at once, a large one as up to four slices.
    `tiles` are sizes in pixels ("mlp" only): a large image becomes as many slices as the best of
    them has, beside the whole image.
    """

    kind: Literal["mlp", "gemma3", "internvl", "qwen2vl_merger"]
    image_size: int
    patch_size: int = 8
    merge: int = 1
    tiles: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ear:
    """An audio encoder and its projector, as in Ultravox: `stack` frames are one token, of each
    30 seconds."""

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
    seed: int = 0


def add_shape(writer: GGUFWriter, recipe: ProjectorRecipe) -> None:
    """The metadata of a projector's file."""
    writer.add_type("mmproj")
    writer.add_bool("clip.use_gelu", True)
    if (eye := recipe.eye) is not None:
        writer.add_bool("clip.has_vision_encoder", True)
        writer.add_string("clip.vision.projector_type", eye.kind)
        _add_encoder_shape(writer, "vision", recipe.n_embd)
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
        _add_encoder_shape(writer, "audio", recipe.n_embd)
        writer.add_uint32("clip.audio.num_mel_bins", ear.n_mel)
        writer.add_uint32("clip.audio.projector.stack_factor", ear.stack)


def _add_encoder_shape(writer: GGUFWriter, sense: str, n_embd: int) -> None:
    writer.add_uint32(f"clip.{sense}.embedding_length", N_EMBD)
    writer.add_uint32(f"clip.{sense}.attention.head_count", N_HEAD)
    writer.add_uint32(f"clip.{sense}.feed_forward_length", N_FF)
    writer.add_uint32(f"clip.{sense}.block_count", N_LAYER)
    writer.add_uint32(f"clip.{sense}.projection_dim", n_embd)
    writer.add_float32(f"clip.{sense}.attention.layer_norm_epsilon", NORM_EPSILON)


Tensor = tuple[str, Matrix, WeightType]


class _Maker:
    """Makes the values of one projector's tensors, one after the other."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def values(self, *shape: int, gain: float = 1.0) -> Matrix:
        """Uniform values. Along all axes but the first, they map an input of unit variance to an
        output of `gain` squared."""
        values = self._rng.random(shape, dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(gain * sqrt(12 / np.prod(shape[1:], initial=1)))
        return values

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> Tensor:
        return f"{name}.weight", self.values(n_out, n_in, gain=gain), WeightType.F32

    def linear(self, name: str, n_out: int, n_in: int) -> Iterator[Tensor]:
        yield self.matrix(name, n_out, n_in)
        yield f"{name}.bias", self.values(n_out, gain=0.1), WeightType.F32

    def norm(self, name: str, n: int = N_EMBD, *, biased: bool = True) -> Iterator[Tensor]:
        yield f"{name}.weight", np.ones(n, np.float32), WeightType.F32
        if biased:
            yield f"{name}.bias", np.zeros(n, np.float32), WeightType.F32


def tensors(recipe: ProjectorRecipe) -> Iterator[Tensor]:
    """Name, values (output features x input features) and type of each."""
    make = _Maker(recipe.seed)
    if recipe.eye is not None:
        yield from _eye(make, recipe.eye, recipe.n_embd)
    if recipe.ear is not None:
        yield from _ear(make, recipe.ear, recipe.n_embd)


def _layers(make: _Maker, prefix: str, *, key_bias: bool = True) -> Iterator[Tensor]:
    for layer in range(N_LAYER):
        block = f"{prefix}.blk.{layer}."
        yield from make.norm(block + "ln1")
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            made = make.linear(block + name, N_EMBD, N_EMBD)
            yield next(made)
            if key_bias or name != "attn_k":
                yield from made
        yield from make.norm(block + "ln2")
        yield from make.linear(block + "ffn_up", N_FF, N_EMBD)
        yield from make.linear(block + "ffn_down", N_EMBD, N_FF)
    yield from make.norm(f"{prefix}.post_ln")


def _eye(make: _Maker, eye: Eye, n_embd: int) -> Iterator[Tensor]:
    side = eye.patch_size
    patch = "v.patch_embd.weight"
    yield patch, make.values(N_EMBD, 3, side, side), WeightType.F32
    if eye.kind == "qwen2vl_merger":
        # One for each frame of a pair; those of an image are the same.
        yield f"{patch}.1", make.values(N_EMBD, 3, side, side), WeightType.F32
    else:
        n_patches = (eye.image_size // side) ** 2
        if eye.kind == "internvl":
            yield "v.class_embd", make.values(N_EMBD), WeightType.F32
            n_patches += 1
        yield make.matrix("v.position_embd", n_patches, N_EMBD, gain=sqrt(N_EMBD) / 2)
    yield from _layers(make, "v")
    if eye.kind == "gemma3":
        yield from make.norm("mm.soft_emb_norm", biased=False)
        # Stored the other way round.
        projection = np.ascontiguousarray(make.values(n_embd, N_EMBD).T)
        yield "mm.input_projection.weight", projection, WeightType.F32
        return
    first, second, n_inner = "mm.0", "mm.2", N_EMBD
    if eye.kind == "qwen2vl_merger":
        n_inner *= 4
    if eye.kind == "internvl":
        first, second, n_inner = "mm.model.mlp.1", "mm.model.mlp.3", N_EMBD * eye.merge**2
        yield from make.norm("mm.model.mlp.0", n_inner)
    yield from make.linear(first, N_FF, n_inner)
    # Like the embedding of a token in these models, the first channel of which is constant.
    weight, bias = make.values(n_embd, N_FF, gain=1.5), np.zeros(n_embd, np.float32)
    weight[0] = 0
    bias[0] = sqrt(n_embd)
    yield f"{second}.weight", weight, WeightType.F32
    yield f"{second}.bias", bias, WeightType.F32


def _ear(make: _Maker, ear: Ear, n_embd: int) -> Iterator[Tensor]:
    for number, n_in in ((1, ear.n_mel), (2, N_EMBD)):
        name = f"a.conv1d.{number}"
        # What is heard counts for more than when.
        yield f"{name}.weight", make.values(N_EMBD, n_in, 3, gain=3.0), WeightType.F16
        yield f"{name}.bias", make.values(N_EMBD, 1, gain=0.1), WeightType.F32
    n_positions = 1500  # 30 seconds in steps of 20 milliseconds
    yield make.matrix("a.position_embd", n_positions, N_EMBD, gain=sqrt(N_EMBD) / 5)
    yield from _layers(make, "a", key_bias=False)
    n_stacked = N_EMBD * ear.stack
    yield from make.norm("mm.a.norm_pre", n_stacked, biased=False)
    yield make.matrix("mm.a.mlp.1", 2 * N_FF, n_stacked)
    yield from make.norm("mm.a.norm_mid", N_FF, biased=False)
    yield make.matrix("mm.a.mlp.2", n_embd, N_FF)
