"""Which of the proposed tokens are a part of the text."""

from collections.abc import Sequence, Set
from itertools import pairwise
from random import Random
from typing import Protocol


class Verifier(Protocol):
    """Compares what is proposed with what the model says."""

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        """True if the text goes on with `proposed`, the token number `depth` of a proposal, at
        position `at` of the text of a request with that `seed`. The model says `sampled`."""


class Exact:
    """Confirms what the model says."""

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        return proposed == sampled


class Synthetic:
    """Confirms by chance, for measuring: texts are not what the model would say.

    The same request gets the same text as long as the same is proposed. Nothing ends a text that
    the model wouldn't end.
    """

    def __init__(self, rates: Sequence[float], eog: Set[int]) -> None:
        """`rates` are the chances that so many tokens are confirmed: one, two, and so on."""
        self._chances = [
            rate / before if before else 0.0 for before, rate in pairwise((1.0, *rates))
        ]
        self._eog = eog

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        if proposed in self._eog or depth >= len(self._chances):
            return False
        return Random(seed << 32 | at).random() < self._chances[depth]
