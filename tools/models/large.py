"""`python -m tools.models.large NAME FILE`: writes a model with a real shape and random quantized
weights.

Speed and memory depend only on shapes and types, so no real model has to be copied to a machine
that is rented for minutes. Blocks are random bytes whose scales give weights a realistic size. All
processors write them, at some gigabytes per second. `recipes.py` has the models for tests.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter, LlamaFileType
from gguf import GGMLQuantizationType as WeightType
from numpy.typing import NDArray

from tools.models.gguf_file import NORM_EPSILON, add_vocabulary
from tools.models.recipes import CHAT_TEMPLATE
from tools.models.tokenizer import extended_vocabulary

CHUNK = 1 << 26
"""The largest number of bytes that a thread makes at a time."""
LOGIT_STD, ATTENTION_GAIN, FEED_FORWARD_GAIN = 4.0, 0.03, 0.5
"""The standard deviation of logits, and the strength of a layer's output relative to a token's own
vector, whose elements have a standard deviation of 1. Attention adds little, so that greedy texts
keep repeating themselves, and proposals can be right."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a decoder. `n_expert` is 0 for a dense model. `weight_type` is the type of most
    matrices. `better` is the type of the output, of values, and of half of the last matrices, as in
    llama.cpp's mixed types."""

    architecture: Literal["llama", "qwen3moe"]
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    head_size: int = 128
    n_expert: int = 0
    n_expert_used: int = 0
    n_ctx_train: int = 131_072
    rope_base: float = 500_000.0
    weight_type: WeightType = WeightType.Q4_K
    better: WeightType = WeightType.Q6_K


DENSE_8B = Shape(
    architecture="llama",
    n_vocab=128_256,
    n_embd=4096,
    n_layer=32,
    n_head=32,
    n_head_kv=8,
    n_ff=14_336,
)
SHAPES = {
    "1.3b": Shape(
        architecture="llama",
        n_vocab=32_768,
        n_embd=2048,
        n_layer=24,
        n_head=16,
        n_head_kv=16,
        n_ff=5632,
        weight_type=WeightType.Q4_0,
        better=WeightType.Q4_0,
    ),
    "8b": DENSE_8B,
    "30b-a3b": Shape(
        architecture="qwen3moe",
        n_vocab=151_936,
        n_embd=2048,
        n_layer=48,
        n_head=32,
        n_head_kv=4,
        n_ff=768,
        n_expert=128,
        n_expert_used=8,
        rope_base=1_000_000.0,
    ),
    "trial": Shape(
        architecture="llama",
        n_vocab=32_768,
        n_embd=512,
        n_layer=4,
        n_head=4,
        n_head_kv=2,
        n_ff=1536,
    ),
    "trial-moe": Shape(
        architecture="qwen3moe",
        n_vocab=32_768,
        n_embd=512,
        n_layer=4,
        n_head=4,
        n_head_kv=2,
        n_ff=256,
        n_expert=16,
        n_expert_used=4,
    ),
}
"""The shapes by name: 1.3 B parameters in Q4_0, for processors; Llama 3 8B and Qwen3 30B A3B in
Q4_K_M; and two small ones for trying a script."""


@dataclass(frozen=True)
class Matrix:
    """One tensor. `shape` has rows first, as in numpy. `std` is the standard deviation of its
    elements; 0 means that all are 1."""

    name: str
    shape: tuple[int, ...]
    weight_type: WeightType
    std: float

    @property
    def n_bytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.weight_type]
        return math.prod(self.shape) // int(block) * int(size)


def matrices(shape: Shape) -> Iterator[Matrix]:
    """Yields the tensors of the model, with llama.cpp's names."""
    n_embd, n_q, n_kv = shape.n_embd, shape.n_head * shape.head_size, shape.head_size
    n_kv *= shape.n_head_kv
    most, better = shape.weight_type, shape.better

    def normal(name: str, *rows: int, kind: WeightType = most, gain: float = 1.0) -> Matrix:
        return Matrix(f"{name}.weight", rows, kind, gain / math.sqrt(rows[-1]))

    def ones(name: str, n: int) -> Matrix:
        return Matrix(f"{name}.weight", (n,), WeightType.F32, 0.0)

    yield Matrix("token_embd.weight", (shape.n_vocab, n_embd), most, 1.0)
    for layer in range(shape.n_layer):
        at = f"blk.{layer}."
        last = better if layer % 2 == 0 else most
        yield ones(at + "attn_norm", n_embd)
        yield normal(at + "attn_q", n_q, n_embd)
        yield normal(at + "attn_k", n_kv, n_embd)
        yield normal(at + "attn_v", n_kv, n_embd, kind=last)
        yield normal(at + "attn_output", n_embd, n_q, gain=ATTENTION_GAIN)
        yield ones(at + "ffn_norm", n_embd)
        if not shape.n_expert:
            yield normal(at + "ffn_gate", shape.n_ff, n_embd)
            yield normal(at + "ffn_up", shape.n_ff, n_embd)
            yield normal(at + "ffn_down", n_embd, shape.n_ff, kind=last, gain=FEED_FORWARD_GAIN)
            continue
        n = shape.n_expert
        yield ones(at + "attn_q_norm", shape.head_size)
        yield ones(at + "attn_k_norm", shape.head_size)
        yield normal(at + "ffn_gate_inp", n, n_embd, kind=WeightType.F32)
        yield normal(at + "ffn_gate_exps", n, shape.n_ff, n_embd)
        yield normal(at + "ffn_up_exps", n, shape.n_ff, n_embd)
        yield normal(at + "ffn_down_exps", n, n_embd, shape.n_ff, kind=last, gain=FEED_FORWARD_GAIN)
    yield ones("output_norm", n_embd)
    yield normal("output", shape.n_vocab, n_embd, kind=better, gain=LOGIT_STD)


# ---- blocks ------------------------------------------------------------------------------------


def blocks(kind: WeightType, n: int, std: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """`n` blocks of the type, in bytes. The layouts are those of ggml-common.h: weights of Q4_K are
    `d * scale * q - d_min * minimum` with 6 bits for each scale and minimum and 4 for q, those of
    Q6_K `d * scale * (q - 32)` with 8 bits and 6, those of Q8_0 `d * q` with 8, those of Q4_0
    `d * (q - 8)` with 4."""
    size = GGML_QUANT_SIZES[kind][1]
    words = rng.integers(0, 1 << 64, size=-(-n * size // 8), dtype=np.uint64)
    found: NDArray[np.uint8] = words.view(np.uint8)[: n * size].reshape(n, size)
    if kind == WeightType.Q4_K:
        scales, q = _moments(np.arange(64)), _moments(np.arange(16))
        ratio = q.mean  # the smallest weight is as far below zero as the largest is above
        variance = scales.square * q.square - (scales.mean * q.mean) ** 2
        variance += ratio**2 * (scales.square - scales.mean**2)
        d = std / math.sqrt(variance)
        found[:, 0:4] = np.array([d, ratio * d], np.float16).view(np.uint8)
    elif kind == WeightType.Q6_K:
        scales, q = _moments(np.arange(-128, 128)), _moments(np.arange(64) - 32)
        d = std / math.sqrt(scales.square * q.square)
        found[:, -2:] = np.array([d], np.float16).view(np.uint8)
    elif kind == WeightType.Q4_0:
        pairs = found[:, 2:]  # 8 in the place of 0, otherwise weights would have a mean
        pairs |= np.where(pairs & 0x0F, 0, 0x08).astype(np.uint8)
        pairs |= np.where(pairs & 0xF0, 0, 0x80).astype(np.uint8)
        d = std / math.sqrt(_moments(np.array([8, *range(1, 16)]) - 8).square)
        found[:, 0:2] = np.array([d], np.float16).view(np.uint8)
    elif kind == WeightType.Q8_0:
        d = std / math.sqrt(_moments(np.arange(-128, 128)).square)
        found[:, 0:2] = np.array([d], np.float16).view(np.uint8)
    else:
        raise ValueError(f"{kind.name} can't be written")
    return found


@dataclass(frozen=True)
class _Moments:
    mean: float
    square: float


def _moments(values: NDArray[np.int_]) -> _Moments:
    return _Moments(float(values.mean()), float((values.astype(np.float64) ** 2).mean()))


def _chunk(matrix: Matrix, start: int, n_bytes: int, seed: int) -> NDArray[np.uint8]:
    """Returns the bytes of the tensor beginning at `start`."""
    if not matrix.std:
        return np.ones(n_bytes // 4, np.float32).view(np.uint8)
    rng = np.random.Generator(np.random.SFC64([seed, start]))
    if matrix.weight_type == WeightType.F32:
        values = rng.standard_normal(n_bytes // 4, np.float32) * np.float32(matrix.std)
        return values.view(np.uint8)
    size = GGML_QUANT_SIZES[matrix.weight_type][1]
    return blocks(matrix.weight_type, n_bytes // size, matrix.std, rng).reshape(-1)


# ---- the file ----------------------------------------------------------------------------------


def write(shape: Shape, name: str, path: Path, n_threads: int | None = None) -> None:
    """Writes the model atomically. The same shape gives the same bytes."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = GGUFWriter(part, shape.architecture)
    _add_facts(writer, shape, name)
    found = list(matrices(shape))
    for each in found:
        writer.add_tensor_info(
            each.name, _in_bytes(each), np.dtype(np.uint8), each.n_bytes, each.weight_type
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        writer.write_padding(writer.fout[0], writer.fout[0].tell())
        offset = writer.fout[0].tell()
        writer.close()
        _write_tensors(part, offset, found, n_threads or os.cpu_count() or 1)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _in_bytes(matrix: Matrix) -> tuple[int, ...]:
    """Returns the shape with the bytes per row instead of the elements, as gguf needs it."""
    block, size = GGML_QUANT_SIZES[matrix.weight_type]
    return (*matrix.shape[:-1], matrix.shape[-1] // block * size)


def _write_tensors(path: Path, offset: int, found: list[Matrix], n_threads: int) -> None:
    file = os.open(path, os.O_WRONLY)

    def put(seed: int, matrix: Matrix, at: int, start: int, n_bytes: int) -> None:
        data = _chunk(matrix, start, n_bytes, seed).data
        written = 0
        while written < n_bytes:
            written += os.pwrite(file, data[written:], at + start + written)

    try:
        with ThreadPoolExecutor(n_threads) as pool:
            jobs = []
            for seed, matrix in enumerate(found):
                size = GGML_QUANT_SIZES[matrix.weight_type][1]
                step = CHUNK // size * size
                for start in range(0, matrix.n_bytes, step):
                    n_bytes = min(step, matrix.n_bytes - start)
                    jobs.append(pool.submit(put, seed, matrix, offset, start, n_bytes))
                offset += GGUFWriter.ggml_pad(matrix.n_bytes, 32)
            for job in jobs:
                job.result()
        os.ftruncate(file, offset)
    finally:
        os.close(file)


def _add_facts(writer: GGUFWriter, shape: Shape, name: str) -> None:
    writer.add_name(name)
    writer.add_description("Random weights in the shape of a real model, to measure speed with.")
    writer.add_license("MIT")
    is_plain = shape.weight_type == WeightType.Q4_0
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0 if is_plain else LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
        writer.add_expert_feed_forward_length(shape.n_ff)
    add_vocabulary(writer, extended_vocabulary(shape.n_vocab, seed=1))
    writer.add_chat_template(CHAT_TEMPLATE.read_text("utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.models.large",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=SHAPES, metavar="NAME", help=", ".join(SHAPES))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--threads", type=int, help="threads that write (default: one for each processor)"
    )
    given = parser.parse_args()
    started = time.perf_counter()
    try:
        write(SHAPES[given.name], given.name, given.file, given.threads)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = given.file.stat().st_size / 1e9
    print(f"{given.file}: {size:.2f} GB in {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
