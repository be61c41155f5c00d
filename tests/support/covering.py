"""Chooses the combinations of parameters, and the number of examples, of a default test run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from hypothesis import settings

DEFAULT = 100
"""The number of examples that Hypothesis generates by default."""


def examples(n: int, **others: Any) -> settings:
    """Returns settings with `n` examples, and more in an exhaustive run, in proportion."""
    many = settings.default
    assert many is not None
    return settings(max_examples=n * max(1, many.max_examples // DEFAULT), **others)


def covering(rows: Sequence[Mapping[str, int]], strength: int) -> set[int]:
    """Returns the indices of some `rows` that cover all combinations of `strength` parameter values
    which occur in any row.

    Greedy: the row with the most missing combinations is next; ties go to rarer pairs of values.
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
