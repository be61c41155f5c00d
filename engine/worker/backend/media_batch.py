"""The input of one decode of embeddings, in the arrays that llama.cpp reads."""

import ctypes

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.worker.backend.prepared import Rows


class MediaBatch:
    """Embeddings (n, n_embd) of one sequence with their positions: (n,), or (n, 4) with M-RoPE.
    The outputs of the last `n_outputs` are wanted."""

    def __init__(
        self, sequence: int, rows: Rows, positions: npt.NDArray[np.int32], *, n_outputs: int
    ) -> None:
        pointer = ctypes.POINTER
        n = len(rows)
        self._rows = np.ascontiguousarray(rows, np.float32)
        # Of M-RoPE, all positions of one dimension come before those of the next one.
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
