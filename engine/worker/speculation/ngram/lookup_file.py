"""Files of llama-lookup-create: which tokens follow an n-gram of up to four tokens, and how often.

An entry is four token ids, -1 behind the last one of a shorter n-gram; the number of followers; and
a token id and a number of occurrences for each of these. All numbers have 32 bits, in the order of
bytes of the machine that wrote them, which is little-endian.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from specllama.engine.errors import BackendError

MAX_NGRAM = 4
_HEAD = MAX_NGRAM + 1  # numbers in front of an entry's followers

_Numbers = npt.NDArray[np.int32]


class LookupFile:
    """The n-grams of a file. Followers that are no tokens of a vocabulary of `n_vocab` are left
    out."""

    def __init__(self, path: str, n_vocab: int) -> None:
        """Raises BackendError."""
        self._n_vocab = n_vocab
        try:
            size = os.path.getsize(path)
            numbers: _Numbers = np.fromfile(path, "<i4")
        except OSError as error:
            raise BackendError(f"cannot read {path}: {error.strerror or error}") from None
        if size % 4:
            raise BackendError(f"{path} is damaged, or no file of llama-lookup-create")
        self._numbers = numbers
        starts = _starts(numbers, path)
        keys = numbers[starts[:, None] + np.arange(MAX_NGRAM)].copy()
        names = keys.view(f"V{4 * MAX_NGRAM}").ravel() if len(keys) else keys.ravel()
        self._places: Mapping[bytes, int] = dict(
            zip((name.tobytes() for name in names), starts.tolist(), strict=True)
        )

    def __len__(self) -> int:
        """The number of n-grams."""
        return len(self._places)

    def followers(self, ngram: Sequence[int]) -> dict[int, int]:
        """How often each token follows `ngram`, of at most four tokens."""
        padded = [*ngram, *[-1] * (MAX_NGRAM - len(ngram))]
        start = self._places.get(np.array(padded, "<i4").tobytes())
        if start is None:
            return {}
        n = self._numbers.item(start + MAX_NGRAM)
        pairs = self._numbers[start + _HEAD : start + _HEAD + 2 * n].tolist()
        return {
            token: count
            for token, count in zip(pairs[::2], pairs[1::2], strict=True)
            if 0 <= token < self._n_vocab and count > 0
        }


def _starts(numbers: _Numbers, path: str) -> npt.NDArray[np.int64]:
    """Where each entry begins."""
    starts = []
    at, end, item = 0, len(numbers), numbers.item
    while at < end:
        n = item(at + MAX_NGRAM) if at + _HEAD <= end else 0
        if n <= 0 or at + _HEAD + 2 * n > end:
            raise BackendError(f"{path} is damaged, or no file of llama-lookup-create")
        starts.append(at)
        at += _HEAD + 2 * n
    return np.array(starts, np.int64)
