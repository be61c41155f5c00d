"""The inputs of decodes, in llama.cpp's arrays."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.wire.media import Media, MediaKind
from specllama.engine.worker.backend.positions import Positions
from specllama.engine.worker.tokens import TokenArray

# ---- Chunks of media before and after encoding, as plain data.


Rows = npt.NDArray[np.float32]
"""Embeddings, one row for each token."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedChunk:
    """A part of a medium before it is encoded; `index` is its number in the medium.

    It takes `n_tokens` tokens and `n_pos` positions, which are fewer with M-RoPE. `is_whole`: its
    tokens attend to each other, so they must be in one micro-batch.

    With M-RoPE, `offsets` (n_tokens, 4) are the positions of its tokens at the beginning of a text,
    and `moving` is 1 where they move with the chunk, else 0.
    """

    media: Media
    index: int
    n_tokens: int
    n_pos: int
    is_whole: bool
    offsets: npt.NDArray[np.int32] | None = None
    moving: npt.NDArray[np.int32] | None = None

    @property
    def kind(self) -> MediaKind:
        return self.media.kind

    def positions(self, first: int) -> npt.NDArray[np.int32]:
        """The positions of its tokens if it begins at position `first`: one each (n_tokens,), or
        four with M-RoPE (n_tokens, 4), in llama.cpp's order."""
        if self.offsets is None or self.moving is None:
            return np.arange(first, first + self.n_tokens, dtype=np.int32)
        return self.offsets + self.moving * np.int32(first)


# ---- The input of one decode of embeddings, in llama.cpp's arrays.


class MediaBatch:
    """Embeddings (n, n_embd) of one sequence with their positions: (n,), or (n, 4) with M-RoPE. The
    last `n_outputs` rows are outputs."""

    def __init__(
        self, sequence: int, rows: Rows, positions: npt.NDArray[np.int32], *, n_outputs: int
    ) -> None:
        pointer = ctypes.POINTER
        n = len(rows)
        self._rows = np.ascontiguousarray(rows, np.float32)
        # With M-RoPE, llama.cpp expects all positions of one dimension before those of the next.
        self._positions = np.ascontiguousarray(positions.T, np.int32)
        self._ones = np.ones(n, np.int32)
        self._sequence = np.array([sequence], np.int32)
        self._addresses = np.full(n, self._sequence.ctypes.data, np.uintp)
        self._outputs = np.zeros(n, np.int8)
        self._outputs[n - n_outputs :] = 1
        batch = C.llama_batch()
        batch.n_tokens = n
        batch.token = None
        batch.embd = self._rows.ctypes.data_as(pointer(ctypes.c_float))
        batch.pos = self._positions.ctypes.data_as(pointer(C.llama_pos))
        batch.n_seq_id = self._ones.ctypes.data_as(pointer(ctypes.c_int32))
        batch.seq_id = self._addresses.ctypes.data_as(pointer(pointer(C.llama_seq_id)))
        batch.logits = self._outputs.ctypes.data_as(pointer(ctypes.c_int8))
        self.batch = batch


class TokenBatch:
    """Up to `n_max` tokens, each with its number in its sequence, and a flag if it is an output
    (logits or a vector are computed); with `all_outputs`, every token is one.

    It is filled from the front after `clear`. The caller must keep the bounds.
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
        """Add consecutive tokens of one sequence, the first one as number `start`; the last
        `output` tokens are outputs. Returns the index of the last one in the batch."""
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
        """Add single tokens of several sequences. Returns their indices in the batch."""
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

    def rows(self, indices: Sequence[int]) -> npt.NDArray[np.intp]:
        """For each of the `indices` of outputs in the batch, the number of its row in the results
        of a decode: llama.cpp stores those of the outputs one after the other."""
        counts = np.cumsum(self.outputs[: self.n_tokens], dtype=np.intp)
        found: npt.NDArray[np.intp] = counts[indices] - 1
        return found

    def filled(self, positions: Positions | None = None) -> Any:
        """llama.cpp's view of the batch; valid until the batch changes. `positions` translates
        token numbers to positions where they differ."""
        self._batch.n_tokens = n = self.n_tokens
        if positions is not None:
            self._translated = positions.translated(self.positions[:n], self.sequences[:n])
            self._batch.pos = self._translated.ctypes.data_as(ctypes.POINTER(C.llama_pos))
        return self._batch
