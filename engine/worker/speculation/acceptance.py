"""How often proposals are right: measured by position, fading, for one sequence or for all."""

FADING = 0.85
"""What a verification still counts when the next one of its sequence comes: a text that copies
begins and ends to do so within a few steps."""
FADING_OF_ALL = 0.98
WEIGHT = 1.0
"""What is expected counts as much as so many verifications."""
AT_FIRST = 0.6
"""Of a source that nothing was measured of: enough to try it."""


class Acceptance:
    """The chance that the tokens of a proposal are confirmed, each if those before it were."""

    def __init__(self, fading: float) -> None:
        self._fading = fading
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        """So many were confirmed; the one behind these, if there was one, was not."""
        n = len(self._tried)
        self._tried += [0.0] * (n_proposed - n)
        self._accepted += [0.0] * (n_proposed - n)
        for position in range(min(n_proposed, n_accepted + 1)):
            self._tried[position] = self._fading * self._tried[position] + 1
            hit = float(position < n_accepted)
            self._accepted[position] = self._fading * self._accepted[position] + hit

    def age(self, factor: float) -> None:
        """Let what was measured count less."""
        self._tried = [factor * each for each in self._tried]
        self._accepted = [factor * each for each in self._accepted]

    def chances(self, n: int, expected: list[float] | None = None) -> list[float]:
        """For each of `n` positions, beside what is `expected` there. What was measured of the
        position before is expected as well."""
        found: list[float] = []
        last = AT_FIRST if expected is None else None
        for position in range(n):
            prior = last if expected is None else expected[position]
            if expected is not None and last is not None:
                prior = 0.5 * (expected[position] + last)
            assert prior is not None
            tried = accepted = 0.0
            if position < len(self._tried):
                tried, accepted = self._tried[position], self._accepted[position]
            last = (accepted + WEIGHT * prior) / (tried + WEIGHT)
            found.append(last)
        return found
