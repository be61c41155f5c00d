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
    """Rows of lessons. `weights` belong to `targets`; `abilities` has the ability of each row.

    Lessons whose prompts begin alike share a row, and what they share is in it once: there
    `branches` is 0, and a lesson's own part has its number. A part sees what is shared and
    itself, and its positions go on from what is shared.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    positions: NDArray[np.int64]
    branches: NDArray[np.int64]
    weights: NDArray[np.float32]
    abilities: list[str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """`places` are positions without a jump."""

    ability: str
    tokens: Tokens
    targets: Tokens
    places: Tokens
    branches: Tokens
    weights: Weights


def batches(
    seed: int, first: int, *, size: int, level: float, n_ctx: int, together: int = 1
) -> tuple[Iterator[list[Batch]], int]:
    """About `POOL` batches of up to `size` tokens, from the lessons at `first` on in the stream,
    and where the next ones begin. Those that are `together` have rows of about one length, so that
    they take about one time."""
    rows: list[Row] = []
    total = 0
    rng = random.Random(f"{seed} {first}")
    index = first
    while total < size * POOL:
        source = Source(seed << 40 | index, level=level * rng.random(), pieces=pieces())
        index += 1
        lessons = curriculum.lessons(source)
        row = row_of(lessons[0].ability, [encode(each) for each in lessons])
        if len(row.tokens) <= LONGEST:
            rows.append(row)
            total += len(row.tokens)
    # Lessons of equal length come in any order.
    rng.shuffle(rows)
    rows.sort(key=_width)
    groups: list[list[Row]] = [[]]
    for row in rows:
        if groups[-1] and _width(row) * (len(groups[-1]) + 1) > size:
            groups.append([])
        groups[-1].append(row)
    while len(groups) > together and len(groups) % together:
        groups.pop(rng.randrange(len(groups)))
    steps = [groups[i : i + together] for i in range(0, len(groups), together)]
    rng.shuffle(steps)
    skipped = SKIPPED * level**2
    return ([_batch(group, rng, n_ctx, skipped) for group in step] for step in steps), index


def row_of(ability: str, lessons: list[tuple[Tokens, Weights]]) -> Row:
    """The lessons' tokens, each predicted from those before it: what all prompts begin with once,
    then what each goes on with."""
    shared = _shared(lessons) if len(lessons) > 1 else len(lessons[0][0]) - 1
    parts = [slice(0, shared), *(slice(shared, len(tokens) - 1) for tokens, _ in lessons)]
    of = [lessons[0], *lessons]
    return Row(
        ability=ability,
        tokens=np.concatenate(
            [tokens[:-1][part] for (tokens, _), part in zip(of, parts, strict=True)]
        ),
        targets=np.concatenate(
            [tokens[1:][part] for (tokens, _), part in zip(of, parts, strict=True)]
        ),
        weights=np.concatenate(
            [weights[1:][part] for (_, weights), part in zip(of, parts, strict=True)]
        ),
        places=np.concatenate([np.arange(part.start, part.stop) for part in parts]),
        branches=np.repeat(np.arange(len(parts)), [part.stop - part.start for part in parts]),
    )


def _shared(lessons: list[tuple[Tokens, Weights]]) -> int:
    """How many tokens all prompts begin with, of which none ends there."""
    shared = min(int((weights < 1).sum()) for _, weights in lessons) - 1
    first = lessons[0][0]
    for tokens, _ in lessons[1:]:
        differ = np.flatnonzero(tokens[:shared] != first[:shared])
        shared = int(differ[0]) if differ.size else shared
    return shared


def _width(row: Row) -> int:
    return -(-len(row.tokens) // STEP) * STEP


def _batch(rows: list[Row], rng: random.Random, n_ctx: int, skipped: float) -> Batch:
    width = max(map(_width, rows))
    shape = (len(rows), width)
    batch = Batch(
        tokens=np.zeros(shape, np.int64),
        targets=np.zeros(shape, np.int64),
        positions=np.zeros(shape, np.int64),
        branches=np.zeros(shape, np.int64),
        weights=np.zeros(shape, np.float32),
        abilities=[row.ability for row in rows],
    )
    for i, row in enumerate(rows):
        n = len(row.tokens)
        batch.tokens[i, :n] = row.tokens
        batch.targets[i, :n] = row.targets
        batch.weights[i, :n] = row.weights
        batch.branches[i, :n] = row.branches
        places = np.append(row.places, np.arange(row.places.max() + 1, width))
        batch.positions[i] = _positions(width, rng, n_ctx, skipped)[places[:width]]
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
