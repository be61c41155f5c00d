"""The array of candidates that llama.cpp's samplers work on."""

import ctypes
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.worker.backend.library import view
from specllama.engine.worker.tokens import TokenArray

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""


class Candidates:
    """Room for a `llama_token_data_array` of up to `n_vocab` tokens, filled again for each
    choice; `pointer` is what samplers take."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._room = np.zeros(n_vocab, CANDIDATE)
        self._ids, self._logits, self._p = (self._room[name] for name in ("id", "logit", "p"))
        self._data = self._room.ctypes.data_as(ctypes.POINTER(C.llama_token_data))
        self._marks = np.zeros(n_vocab, np.bool_)
        self._array = C.llama_token_data_array()
        self.pointer = ctypes.byref(self._array)

    @cached_property
    def _all(self) -> npt.NDArray[np.uint8]:
        """The bytes of all tokens with no logits: bytes are copied faster than fields."""
        room = np.zeros(self._n_vocab, CANDIDATE)
        room["id"] = np.arange(self._n_vocab)
        return room.view(np.uint8)

    def reaching(
        self, logits: npt.NDArray[np.float32], least: float, limit: int, also: TokenArray
    ) -> TokenArray:
        """The tokens, of all, with logits of at least `least`, and those in `also`, in ascending
        order; none if they are more than `limit`."""
        np.greater_equal(logits, least, out=self._marks)
        self._marks[also] = True
        if np.count_nonzero(self._marks) > limit:
            return np.empty(0, np.int32)
        return self._marks.nonzero()[0].astype(np.int32)

    def fill(
        self, ids: TokenArray | None, logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Put in the tokens `ids`, or all there are, with their logits. A view of the logits in
        there, good until a sampler moves them."""
        n = len(logits)
        if ids is None:
            self._room.view(np.uint8)[:] = self._all
        else:
            self._ids[:n], self._p[:n] = ids, 0
        inside = self._logits[:n]
        inside[:] = logits
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, n, -1, False
        return inside

    @property
    def chosen(self) -> tuple[int, float]:
        """The token that a sampler has selected, and its logit; it must have selected one."""
        chosen = self._array.data[self._array.selected]
        return int(chosen.id), float(chosen.logit)

    @property
    def has_chosen(self) -> bool:
        return bool(0 <= self._array.selected < self._array.size)

    @property
    def left(self) -> npt.NDArray[Any]:
        """The candidates that the samplers have left; a view. A sampler may have put an array of
        its own in the place of ours."""
        return view(self._array.data, self._array.size, CANDIDATE)
