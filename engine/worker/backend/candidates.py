"""The arrays of candidates for llama.cpp's samplers."""

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.worker.backend.library import view
from specllama.engine.worker.tokens import TokenArray

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""
_ARRAY = np.dtype(
    {
        "names": ["data", "size", "selected", "sorted"],
        "formats": [np.uintp, np.uintp, np.int64, np.bool_],
        "offsets": [0, 8, 16, 24],
        "itemsize": 32,
    }
)
"""llama_token_data_array."""

# With plain addresses, a call takes a fraction of the time of the declared function.
_apply: Any = C._lib["llama_sampler_apply"]
_apply.restype, _apply.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]


class Candidates:
    """A reusable `llama_token_data_array` of up to `n_vocab` tokens, filled for each choice;
    `pointer` is the argument of samplers."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._room = np.zeros(n_vocab, CANDIDATE)
        self._ids, self._logits, self._p = (self._room[name] for name in ("id", "logit", "p"))
        self._data = self._room.ctypes.data_as(ctypes.POINTER(C.llama_token_data))
        self._array = C.llama_token_data_array()
        self.pointer = ctypes.byref(self._array)

    @cached_property
    def _all(self) -> npt.NDArray[np.uint8]:
        """The bytes of the array for all tokens, without logits: copying bytes is faster than
        copying fields."""
        room = np.zeros(self._n_vocab, CANDIDATE)
        room["id"] = np.arange(self._n_vocab)
        return room.view(np.uint8)

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


class CandidateRows:
    """The candidates of several short rows, for one choice from each."""

    def __init__(
        self, ids: TokenArray, logits: npt.NDArray[np.float32], counts: Sequence[int]
    ) -> None:
        """`ids` and `logits` are those of all rows; `counts` are the lengths of the rows."""
        self._data = np.zeros(len(ids), CANDIDATE)
        self._data["id"], self._data["logit"] = ids, logits
        self._arrays = np.zeros(len(counts), _ARRAY)
        firsts = np.cumsum([0, *counts[:-1]])
        self._arrays["data"] = self._data.ctypes.data + CANDIDATE.itemsize * firsts
        self._arrays["size"], self._arrays["selected"] = counts, -1

    def apply(self, chains: Sequence[Any]) -> list[int]:
        """Apply a `llama_sampler`, which must select a token, to each row. Returns the selected
        tokens."""
        address = self._arrays.ctypes.data
        for chain in chains:
            _apply(chain, address)
            address += _ARRAY.itemsize
        # llama.cpp's samplers reorder the arrays and shorten them at both ends, in place.
        offsets = self._arrays["data"].astype(np.int64) - self._data.ctypes.data
        places = offsets // CANDIDATE.itemsize + self._arrays["selected"]
        chosen: list[int] = self._data["id"][places].tolist()
        return chosen
