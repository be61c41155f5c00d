"""The time of forced tokens that are evaluated on their own, before the rest of a step.

llama.cpp evaluates separate caches together only with as many tokens of each. What is forced of one
sequence alone takes another reading of the weights, but no logits: on a CPU it nearly always pays,
on a GPU if there are enough tokens.
"""

from specllama.engine.worker.scheduling.step_cost import StepCost
from specllama.engine.worker.speculation.pace import RETRY

MOST = 1 << 10
"""Tokens up to which sizes are told apart."""


class Early:
    """Learns from what it took."""

    def __init__(self) -> None:
        self._cost = StepCost(MOST)
        self._n_refused = 0

    def pays(self, n: int, n_generating: int, usual: float) -> bool:
        """True if `n` tokens take no longer than in steps of `n_generating` sequences, which take
        `usual` seconds. What is not known is tried, and what did not pay is tried again."""
        seconds = self._cost.seconds(0, n, 0)
        if not n or seconds is None or not usual or seconds <= n * usual / n_generating:
            return True
        self._n_refused += 1
        return self._n_refused % RETRY == 0

    def observe(self, n: int, seconds: float) -> None:
        """So many tokens took so long."""
        self._cost.observe(0, n, 0, seconds)
