"""The array of candidates for llama.cpp's samplers."""

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
    """A reusable `llama_token_data_array` of up to `n_vocab` tokens, filled for each choice;
    `pointer` is the argument of samplers."""

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
        """The bytes of the array for all tokens, without logits: copying bytes is faster than
        copying fields."""
        room = np.zeros(self._n_vocab, CANDIDATE)
        room["id"] = np.arange(self._n_vocab)
        return room.view(np.uint8)

    def reaching(
        self, logits: npt.NDArray[np.float32], least: float, limit: int, also: TokenArray
    ) -> TokenArray:
        """The tokens with logits of at least `least`, and the tokens `also`, in ascending order;
        empty if there are more than `limit`."""
        np.greater_equal(logits, least, out=self._marks)
        self._marks[also] = True
        if np.count_nonzero(self._marks) > limit:
            return np.empty(0, np.int32)
        return self._marks.nonzero()[0].astype(np.int32)

    def fill(
        self, ids: TokenArray | None, logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Fill the array with the tokens `ids` (None: all) and their logits. Returns a view of the
        logits in the array, valid until a sampler moves them."""
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
        """The selected token and its logit; a sampler must have selected one."""
        chosen = self._array.data[self._array.selected]
        return int(chosen.id), float(chosen.logit)

    @property
    def has_chosen(self) -> bool:
        return bool(0 <= self._array.selected < self._array.size)

    @property
    def left(self) -> npt.NDArray[Any]:
        """A view of the remaining candidates. A sampler may have replaced the array by its own."""
        return view(self._array.data, self._array.size, CANDIDATE)
