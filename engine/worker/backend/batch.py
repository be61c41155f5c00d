"""The input of one decode, in the arrays that llama.cpp reads."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C

from specllama.engine.worker.backend.positions import Positions
from specllama.engine.worker.tokens import TokenArray


class Batch:
    """Up to `n_max` tokens, each with its number in its sequence, and whether its output is
    wanted (its logits, or its vector); with `all_outputs` that of every token is.

    It is filled from the front after `clear`. The bounds are the caller's to keep.
    """

    def __init__(self, n_max: int, *, all_outputs: bool = False) -> None:
        self.n_tokens = 0
        self.tokens = np.zeros(n_max, np.int32)
        self.positions = np.zeros(n_max, np.int32)
        self.sequences = np.zeros(n_max, np.int32)
        self.outputs = np.full(n_max, all_outputs, np.int8)
        self._all_outputs = all_outputs
        self._ones = np.ones(n_max, np.int32)
        # llama_batch.seq_id is an array of pointers; each points to its element of `sequences`.
        self._addresses = self.sequences.ctypes.data + 4 * np.arange(n_max, dtype=np.uintp)
        pointer = ctypes.POINTER
        batch = C.llama_batch()
        batch.token = self.tokens.ctypes.data_as(pointer(C.llama_token))
        batch.embd = None
        batch.pos = self.positions.ctypes.data_as(pointer(C.llama_pos))
        batch.n_seq_id = self._ones.ctypes.data_as(pointer(ctypes.c_int32))
        batch.seq_id = self._addresses.ctypes.data_as(pointer(pointer(C.llama_seq_id)))
        batch.logits = self.outputs.ctypes.data_as(pointer(ctypes.c_int8))
        self._batch = batch

    def clear(self) -> None:
        self.n_tokens = 0

    def add(
        self,
        tokens: TokenArray | Sequence[int],
        start: int,
        sequence: int,
        *,
        output: int = 1,
    ) -> int:
        """Add consecutive tokens of one sequence, the first one as number `start`; the outputs of
        the last `output` of them are wanted. The index of the last one in the batch."""
        first, stop = self.n_tokens, self.n_tokens + len(tokens)
        self.tokens[first:stop] = tokens
        self.positions[first:stop] = np.arange(start, start + len(tokens))
        self.sequences[first:stop] = sequence
        if not self._all_outputs:
            self.outputs[first:stop] = 0
            self.outputs[stop - output : stop] = 1
        self.n_tokens = stop
        return stop - 1

    def add_singles(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[bool],
    ) -> range:
        """Add single tokens of several sequences; their indices in the batch."""
        indices = range(self.n_tokens, self.n_tokens + len(tokens))
        if tokens:
            rows = slice(indices.start, indices.stop)
            self.tokens[rows] = tokens
            self.positions[rows] = positions
            self.sequences[rows] = sequences
            if not self._all_outputs:
                self.outputs[rows] = outputs
            self.n_tokens = indices.stop
        return indices

    def filled(self, positions: Positions | None = None) -> Any:
        """llama.cpp's view of the batch; valid until the batch changes. `positions` has those of
        the tokens where these are not their numbers."""
        self._batch.n_tokens = n = self.n_tokens
        if positions is not None:
            self._translated = positions.translated(self.positions[:n], self.sequences[:n])
            self._batch.pos = self._translated.ctypes.data_as(ctypes.POINTER(C.llama_pos))
        return self._batch
