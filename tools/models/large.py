"""`python -m tools.models.large NAME FILE`: writes a model with a real shape and random quantized
weights.

Speed and memory depend only on shapes and types, so no real model has to be copied to a machine
that is rented for minutes. Blocks are random bytes whose scales give weights a realistic size. All
processors write them, at some gigabytes per second.

8b has the shape of Llama 3 8B, 30b-a3b of Qwen3 30B A3B (a mixture of experts), 9b-hybrid of
Qwen3.5 9B (linear attention, and full attention in every fourth layer), all in Q4_K_M. 1.3b is a
model in Q4_0 for processors. The names with "trial" are small models of the same kinds, to try a
script. With the suffix "-steady", a model's greedy text is a fixed sequence of tokens.
"""

import argparse
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as WeightType
from numpy.typing import NDArray

from tools.models.gguf_file import add_vocabulary
from tools.models.large_shapes import SHAPES, Matrix, Shape
from tools.models.recipes import CHAT_TEMPLATE
from tools.models.tokenizer import extended_vocabulary

CHUNK = 1 << 26
"""The largest number of bytes that a thread makes at a time."""


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
    if matrix.values:
        return np.array(matrix.values, np.float32).view(np.uint8)[start:][:n_bytes]
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
    writer.add_name(name)
    writer.add_description("Random weights in the shape of a real model, to measure speed with.")
    writer.add_license("MIT")
    shape.add_facts(writer)
    add_vocabulary(writer, extended_vocabulary(shape.n_vocab, seed=1))
    writer.add_chat_template(CHAT_TEMPLATE.read_text("utf-8"))
    found = list(shape.matrices())
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
        if matrix.twin:
            start += matrix.n_bytes // matrix.shape[0]
        fits = max(0, matrix.n_bytes - start)
        write_at(at + start, data[:fits])
        write_at(at + start + fits - matrix.n_bytes, data[fits:])  # the last row becomes the first

    def write_at(position: int, data: memoryview) -> None:
        while data:
            n_written = os.pwrite(file, data, position)
            position, data = position + n_written, data[n_written:]

    try:
        with ThreadPoolExecutor(n_threads) as pool:
            jobs = []
            seeds = {matrix.name: seed for seed, matrix in enumerate(found)}
            for matrix in found:
                seed = seeds[matrix.twin or matrix.name]
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
