"""A part of a test's combinations of parameters, and examples: the default run's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from hypothesis import settings

DEFAULT = 100
"""Examples that Hypothesis makes if nothing is said."""


def examples(n: int, **others: Any) -> settings:
    """Settings with `n` examples; with twenty times as many in an exhaustive run."""
    many = settings.default
    assert many is not None
    return settings(max_examples=n * max(1, many.max_examples // DEFAULT), **others)


def covering(rows: Sequence[Mapping[str, int]], strength: int) -> set[int]:
    """The places of some of `rows` in which every `strength` values of different parameters occur
    together that do so in any of them.

    Among rows that bring as many of them, one with more new pairs goes first.
    """
    strength = min(strength, *(len(row) for row in rows))
    wanted = [{*combinations(sorted(row.items()), strength)} for row in rows]
    pairs = [{*combinations(sorted(row.items()), 2)} for row in rows]
    missing = set().union(*wanted)
    seen: Counter[tuple[tuple[str, int], ...]] = Counter()
    kept: set[int] = set()
    while missing:
        best = max(
            range(len(rows)),
            key=lambda at: (len(wanted[at] & missing), -sum(seen[pair] for pair in pairs[at])),
        )
        kept.add(best)
        missing -= wanted[best]
        seen.update(pairs[best])
    return kept
