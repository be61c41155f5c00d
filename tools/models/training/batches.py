"""Batches of lessons, endless, determined by a seed and a place in the stream."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.models.lessons import curriculum
from tools.models.lessons.source import Source
from tools.models.training.encoding import Tokens, Weights, encode, pieces

LONGEST = 2048
"""Longer rows are left out."""
POOL = 250_000
"""The number of tokens in the batches that are filled together."""
SKIPPED = 0.3
"""The share of rows whose positions jump at least once, at the full level: copying is learnt from
short distances first."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Concatenated rows of lessons. `weights` belong to `targets`; `abilities` and `lengths` have
    one entry per row.

    Lessons whose prompts begin alike share a row, with the common tokens only once. Each of the
    `parts` has the begin and end of tokens that see earlier tokens of the same part, and the begin
    and end of other tokens that all of them see. So the part of a lesson sees the common tokens and
    itself, and its positions continue from the common tokens.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    positions: NDArray[np.int64]
    weights: NDArray[np.float32]
    parts: NDArray[np.int64]
    abilities: list[str]
    lengths: list[int]


@dataclass(frozen=True, kw_only=True)
class Row:
    """`places` are positions without a jump."""

    ability: str
    tokens: Tokens
    targets: Tokens
    places: Tokens
    weights: Weights
    parts: NDArray[np.int64]


def batches(
    seed: int, first: int, *, size: int, level: float, n_ctx: int, together: int = 1
) -> tuple[Iterator[list[Batch]], int]:
    """Returns batches of about `size` tokens, `together` at a time, beginning with lesson `first`
    of the stream, about `POOL` tokens in all, and the place of the next ones. Each batch has rows
    of all lengths, so that all take about the same time."""
    rows: list[Row] = []
    total = 0
    rng = random.Random(f"{seed} {first}")
    index = first
    while total < POOL:
        source = Source(seed << 40 | index, level=level * rng.random(), pieces=pieces())
        index += 1
        lessons = curriculum.lessons(source)
        row = row_of(lessons[0].ability, [encode(each) for each in lessons])
        if len(row.tokens) <= LONGEST:
            rows.append(row)
            total += len(row.tokens)
    groups = _filled(rows, max(1, round(total / size / together)) * together)
    rng.shuffle(groups)
    steps = [groups[i : i + together] for i in range(0, len(groups), together)]
    skipped = SKIPPED * level**2
    return ([_batch(group, rng, n_ctx, skipped) for group in step] for step in steps), index


def padded(batch: Batch, n: int) -> Batch:
    """Returns the batch with exactly `n` tokens, so that a GPU's kernels are compiled only once:
    surplus tokens are left out, and added tokens have the weight 0."""
    size = min(n, len(batch.tokens))
    parts = np.minimum(batch.parts[batch.parts[:, 0] < size], size)

    def fitted(values: NDArray[Any]) -> NDArray[Any]:
        return np.pad(values[:size], (0, n - size))

    return Batch(
        tokens=fitted(batch.tokens),
        targets=fitted(batch.targets),
        positions=fitted(batch.positions),
        weights=fitted(batch.weights),
        parts=np.append(parts, [(size, n, size, size)], 0) if n > size else parts,
        abilities=batch.abilities,
        lengths=batch.lengths,
    )


def _filled(rows: list[Row], n: int) -> list[list[Row]]:
    """Returns `n` groups of about equally many tokens: the longest rows first, each into the group
    with the most room."""
    groups: list[list[Row]] = [[] for _ in range(n)]
    filled = [0] * n
    for row in sorted(rows, key=lambda row: len(row.tokens), reverse=True):
        emptiest = min(range(n), key=filled.__getitem__)
        groups[emptiest].append(row)
        filled[emptiest] += len(row.tokens)
    return groups


def row_of(ability: str, lessons: list[tuple[Tokens, Weights]]) -> Row:
    """Returns the row of some lessons, each token predicted from earlier ones: the common beginning
    of all prompts once, then the rest of each lesson."""
    shared = _shared(lessons) if len(lessons) > 1 else 0
    # The source of the tokens: the lesson, and the begin and end of its tokens.
    kept = [(lessons[0], 0, shared)] if shared else []
    kept += [(each, shared, len(each[0]) - 1) for each in lessons]
    ends = np.cumsum([end - begin for _, begin, end in kept])
    parts = [
        (end - (stop - begin), end, 0, begin)
        for end, (_, begin, stop) in zip(ends, kept, strict=True)
    ]
    return Row(
        ability=ability,
        tokens=np.concatenate([tokens[begin:end] for (tokens, _), begin, end in kept]),
        targets=np.concatenate([tokens[begin + 1 : end + 1] for (tokens, _), begin, end in kept]),
        weights=np.concatenate([weights[begin + 1 : end + 1] for (_, weights), begin, end in kept]),
        places=np.concatenate([np.arange(begin, end) for _, begin, end in kept]),
        parts=np.array(parts, np.int64),
    )


def _shared(lessons: list[tuple[Tokens, Weights]]) -> int:
    """Returns the number of tokens that all prompts begin with, shorter than each prompt."""
    shared = min(int((weights < 1).sum()) for _, weights in lessons) - 1
    first = lessons[0][0]
    for tokens, _ in lessons[1:]:
        differ = np.flatnonzero(tokens[:shared] != first[:shared])
        shared = int(differ[0]) if differ.size else shared
    return shared


def _batch(rows: list[Row], rng: random.Random, n_ctx: int, skipped: float) -> Batch:
    lengths = [len(row.tokens) for row in rows]
    begins = np.cumsum([0, *lengths[:-1]])
    positions = [
        _positions(int(row.places.max()) + 1, rng, n_ctx, skipped)[row.places] for row in rows
    ]
    return Batch(
        tokens=np.concatenate([row.tokens for row in rows]).astype(np.int64),
        targets=np.concatenate([row.targets for row in rows]).astype(np.int64),
        positions=np.concatenate(positions),
        weights=np.concatenate([row.weights for row in rows]),
        parts=np.concatenate([row.parts + begin for row, begin in zip(rows, begins, strict=True)]),
        abilities=[row.ability for row in rows],
        lengths=lengths,
    )


def _positions(width: int, rng: random.Random, n_ctx: int, skipped: float) -> NDArray[np.int64]:
    """Returns ascending positions, with jumps in half of the rows, so that a short text teaches the
    distances of a long one (Zhu et al., "PoSE", 2023)."""
    positions = np.arange(width, dtype=np.int64)
    if rng.random() < skipped:
        room = n_ctx - width
        for _ in range(rng.randint(1, 3)):
            jump = int(room * rng.random() ** 2)
            positions[rng.randrange(width) :] += jump
            room -= jump
    return positions
