"""The time that a source takes to find tokens, by the number of texts that it is asked for."""

FADING = 0.8


class Finding:
    """Learns from what it took. One token is found behind the other."""

    def __init__(self) -> None:
        self._each: dict[int, float] = {}  # seconds for each token, by texts
        self._in_vain: dict[int, float] = {}  # seconds where nothing is found

    def each(self, n_texts: int) -> float | None:
        """Seconds for the first token of each of so many texts, for the second ones, and so on;
        None if nothing is known."""
        if not (self._each or self._in_vain):
            return None
        return max(_nearest(self._each, n_texts), _nearest(self._in_vain, n_texts))

    def all(self, n_texts: int, n: int) -> float:
        """Seconds for `n` tokens of each, or for none."""
        return max(_nearest(self._in_vain, n_texts), n * _nearest(self._each, n_texts))

    def is_guess(self, n_texts: int) -> bool:
        """True if it was never asked for so many."""
        return n_texts > max((*self._each, *self._in_vain), default=0)

    def found(self, n_texts: int, n: int, seconds: float) -> None:
        """`n` tokens at the most were found for any of so many texts."""
        found = self._each if n else self._in_vain
        each = seconds / max(1, n)
        before = found.get(n_texts, each)
        found[n_texts] = FADING * before + (1 - FADING) * each


def _nearest(seconds: dict[int, float], n_texts: int) -> float:
    if not seconds:
        return 0.0
    return seconds[min(seconds, key=lambda n: abs(n - n_texts))]
