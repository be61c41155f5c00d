"""Batches of lessons of about one length, without end, from a seed and a place in its stream."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.models.lessons import curriculum
from tools.models.lessons.source import Source
from tools.models.training.encoding import Tokens, Weights, encode, pieces

LONGEST = 2048
"""Lessons with more tokens are left out."""
POOL = 40
"""Batches that are sorted at a time."""
SKIPPED = 0.5
"""The part of the rows whose positions jump once or more, at the full level: copying is learnt
from short distances first."""
STEP = 32
"""Lengths are multiples of it."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of lessons. `weights` belong to `targets`; `abilities` has the ability of each row."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    positions: NDArray[np.int64]
    weights: NDArray[np.float32]
    abilities: list[str]


Row = tuple[str, Tokens, Weights]


def batches(
    seed: int, first: int, *, size: int, level: float, n_ctx: int
) -> tuple[Iterator[Batch], int]:
    """About `POOL` batches of up to `size` tokens, from the lessons at `first` on in the stream,
    and where the next ones begin."""
    rows: list[Row] = []
    total = 0
    rng = random.Random(f"{seed} {first}")
    index = first
    while total < size * POOL:
        source = Source(seed << 40 | index, level=level * rng.random(), pieces=pieces())
        index += 1
        lesson = curriculum.lesson(source)
        tokens, weights = encode(lesson)
        if len(tokens) <= LONGEST:
            rows.append((lesson.ability, tokens, weights))
            total += len(tokens)
    # Lessons of equal length come in any order.
    rng.shuffle(rows)
    rows.sort(key=lambda row: _width(row[1]))
    groups: list[list[Row]] = [[]]
    for row in rows:
        if groups[-1] and _width(row[1]) * (len(groups[-1]) + 1) > size:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return (_batch(group, rng, n_ctx, SKIPPED * level**2) for group in groups), index


def _width(tokens: Tokens) -> int:
    return -(-(len(tokens) - 1) // STEP) * STEP


def _batch(rows: list[Row], rng: random.Random, n_ctx: int, skipped: float) -> Batch:
    width = max(_width(tokens) for _, tokens, _ in rows)
    shape = (len(rows), width)
    batch = Batch(
        tokens=np.zeros(shape, np.int64),
        targets=np.zeros(shape, np.int64),
        positions=np.zeros(shape, np.int64),
        weights=np.zeros(shape, np.float32),
        abilities=[ability for ability, _, _ in rows],
    )
    for i, (_, tokens, weights) in enumerate(rows):
        n = len(tokens) - 1
        batch.tokens[i, :n] = tokens[:-1]
        batch.targets[i, :n] = tokens[1:]
        batch.weights[i, :n] = weights[1:]
        batch.positions[i] = _positions(width, rng, n_ctx, skipped)
    return batch


def _positions(width: int, rng: random.Random, n_ctx: int, skipped: float) -> NDArray[np.int64]:
    """Ascending positions, with jumps in half of the rows: so a short text teaches the distances
    of a long one (Zhu et al., "PoSE", 2023)."""
    positions = np.arange(width, dtype=np.int64)
    if rng.random() < skipped:
        room = n_ctx - width
        for _ in range(rng.randint(1, 3)):
            jump = int(room * rng.random() ** 2)
            positions[rng.randrange(width) :] += jump
            room -= jump
    return positions
