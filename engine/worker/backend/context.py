"""The KV cache of a model, and the batch for its evaluation."""

import ctypes
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine import system
from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.wire.devices import CPU
from specllama.engine.worker.backend.batch import MediaBatch, PreparedChunk, Rows, TokenBatch
from specllama.engine.worker.backend.candidates import Candidates
from specllama.engine.worker.backend.context_setup import (
    apply_control_vectors,
    context_params,
    created,
    thread_pools,
    warn_of_small_batches,
)
from specllama.engine.worker.backend.library import (
    failure,
    floats,
    forget_errors,
    holdings,
    llama,
)
from specllama.engine.worker.backend.model import Model
from specllama.engine.worker.backend.positions import Positions, Run
from specllama.engine.worker.backend.room import OutOfMemoryError
from specllama.engine.worker.backend.watch import stepping

log = logging.getLogger("specllama.engine.worker.backend")
perf_log = logging.getLogger("specllama.engine.perf")
perf_log.setLevel(logging.INFO)  # `--perf` asks for these lines

StateArray = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
"""Rows of numbers, one row for each token or text."""

_PARTIAL = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

_NO_MEMORY = -2  # of llama_decode

# Indexing the library makes a separate function object, which can return a plain number. The
# declared function makes a pointer object, which takes longer than the call.
_logits_address: Any = C._lib["llama_get_logits_ith"]
_logits_address.restype, _logits_address.argtypes = (
    ctypes.c_void_p,
    [ctypes.c_void_p, ctypes.c_int32],
)


class OutOfCellsError(Exception):
    """The KV cache has no room for the batch; no token of it was evaluated."""


class Context:
    """The KV cache of one model, and one batch that is filled and decoded repeatedly.

    `n_seq` is the number of sequences, `n_ctx` the number of cells of all sequences, `n_ctx_seq`
    that of one sequence. Raises `BackendError` if there is no memory for it or the options don't
    fit the model.
    """

    def __init__(self, model: Model, options: EngineOptions, n_seq: int, unified: bool) -> None:
        self.model = model
        params = context_params(model, options, n_seq, unified)
        warn_of_small_batches(options, n_seq)
        self._perf = options.compute.perf
        self._pools = thread_pools(options)
        self._ctx = created(model, params)
        self._memory = C.llama_get_memory(self._ctx)
        self.moves_pending = False  # cells were moved since the last decode
        if not self._memory and not options.embedding.embeds():
            self.close()
            raise BackendError("this model can't generate; start the server with --embeddings")
        self._positions = Positions() if model.uses_mrope else None
        # A recurrent state can't lose tokens. llama.cpp would abort when it moves keys in bf16.
        self.can_shift = not model.is_recurrent and options.cache_types()[0] != "bf16"
        self.can_shift &= bool(C.llama_memory_can_shift(self._memory))
        self._unified = unified
        self.n_seq = n_seq
        self._embeds = options.embedding.embeds()
        self._window = model.moving_window(options)
        self.is_cuttable = not (model.is_recurrent or self._window)
        if self._pools:
            attach = llama("llama_attach_threadpool", None, *[ctypes.c_void_p] * 3)
            attach(self._ctx, *[pool.handle for pool in self._pools])
        try:
            apply_control_vectors(self._ctx, model, options)
        except BackendError:
            self.close()
            raise
        self.n_ctx = int(C.llama_n_ctx(self._ctx))
        self.n_ctx_seq = int(C.llama_n_ctx_seq(self._ctx))
        self.n_batch = int(C.llama_n_batch(self._ctx))
        self.n_ubatch = int(C.llama_n_ubatch(self._ctx))
        self.batch = TokenBatch(self.n_batch, all_outputs=self._embeds)  # pooling needs all of them
        # By address: making a view takes longer than choosing a token.
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        self._newest: dict[int, npt.NDArray[np.float32]] = {}  # by index, of the last decode
        self._kept: dict[int, npt.NDArray[np.float32]] = {}  # by indices from n_batch on
        self._kept_numbers = itertools.count()

    def decode(self) -> None:
        """Evaluate `batch`, which must not be empty.

        The positions in the batch must continue each sequence without a gap. Raises
        `OutOfCellsError` if the KV cache is full; `OutOfMemoryError` if there is no memory to
        compute the batch, a part of which may then be in the cache; and `BackendError` on any other
        failure, after which the cache of the sequences in the batch is undefined.
        """
        self._decode(self.batch.filled(self._positions), "a decode")

    def _decode(self, batch: Any, name: str) -> None:
        self._newest.clear()
        stepping.begin(name, batch.n_tokens, self)
        status = C.llama_decode(self._ctx, batch)
        if status != 0:
            stepping.failed()
        if status == 1:
            raise OutOfCellsError
        if status == _NO_MEMORY:
            raise OutOfMemoryError
        if status != 0:
            raise failure(f"llama_decode failed ({status})")
        self.moves_pending = False

    def decode_media(
        self,
        sequence: int,
        start: int,
        chunk: PreparedChunk,
        rows: Rows,
        offset: int = 0,
        *,
        output: bool = False,
    ) -> int:
        """Evaluate `rows`, the embeddings of `chunk` from its token `offset` on; the chunk begins
        at token number `start` of `sequence`. Returns the index of the last row; with `output`, its
        logits are computed. A context for vectors computes the outputs of all rows.

        There are at most n_batch rows. A chunk that `is_whole` must be complete, with at most
        n_ubatch tokens. Raises the errors of `decode`.
        """
        stop = offset + len(rows)
        most = self.n_ubatch if chunk.is_whole else self.n_batch
        if rows.shape[1] != self.model.n_embd_inp or not 0 < len(rows) <= most:
            raise BackendError(f"embeddings of the shape {rows.shape} can't be evaluated")
        if stop > chunk.n_tokens or (chunk.is_whole and len(rows) != chunk.n_tokens):
            raise BackendError("a medium can't be evaluated in these pieces")
        first = self.position(sequence, start)
        positions = chunk.positions(first)[offset:stop]
        n_outputs = len(rows) if self._embeds else int(output)
        batch = MediaBatch(sequence, rows, positions, n_outputs=n_outputs)
        if chunk.is_whole:
            C.llama_set_causal_attn(self._ctx, False)
        try:
            self._decode(batch.batch, "a decode of media")
        finally:
            if chunk.is_whole:
                C.llama_set_causal_attn(self._ctx, True)
        if self._positions is not None:
            last = int(chunk.positions(0)[:stop, 0].max())
            self._positions.add(sequence, Run(start, start + stop, chunk.n_pos, last))
        return len(rows) - 1

    def position(self, sequence: int, number: int) -> int:
        """The position of the token with that `number` in `sequence`."""
        return number if self._positions is None else self._positions.of(sequence, number)

    def synchronize(self) -> None:
        """Wait until the device has finished: except on a CPU, `decode` returns earlier."""
        C.llama_synchronize(self._ctx)

    @property
    def is_asynchronous(self) -> bool:
        """True if `decode` returns before the device has finished: no layer of the newest model is
        on the CPU."""
        return bool(holdings.layers) and CPU not in holdings.layers

    @cached_property
    def candidates(self) -> Candidates:
        """The candidate array for a choice among all tokens."""
        return Candidates(self.model.n_vocab)

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """The logits (n_vocab,) of batch position `index`, an output of the last decode; or the
        logits that `keep` has stored under `index`.

        A view, valid until the next decode (or `release`)."""
        if index >= self.n_batch:
            return self._kept[index]
        row = self._newest.get(index)
        if row is None:
            row = self._newest[index] = self._row(_logits_address(self._ctx, index))
        return row

    def block(self, rows: Mapping[int, int], n: int, *, views: bool) -> npt.NDArray[np.float32]:
        """A block of logits (n, n_vocab) of the last decode. `rows` has the row in it of each of
        its outputs, by index, row 0 included. With `views`, `logits` finds them faster."""
        first = next(index for index, row in rows.items() if row == 0)
        n_vocab = self.model.n_vocab
        block = floats(_logits_address(self._ctx, first), n * n_vocab).reshape(n, n_vocab)
        if views:
            self._newest.update((index, block[row]) for index, row in rows.items())
        return block

    def _row(self, address: int | None) -> npt.NDArray[np.float32]:
        if address is None:
            raise BackendError("llama.cpp has no logits for this position")
        row = self._rows.get(address)
        if row is None:
            if len(self._rows) >= 4 * self.n_batch:
                self._rows.clear()  # llama.cpp has moved its buffer repeatedly
            row = self._rows[address] = floats(address, self.model.n_vocab)
        return row

    def keep(self, index: int) -> int:
        """Copy the logits of an output of the last decode. Returns their index until `release`."""
        kept = self.n_batch + next(self._kept_numbers)
        self._kept[kept] = self.logits(index).copy()
        return kept

    def release(self, index: int) -> None:
        """Drop the copy that `keep` has stored under `index`."""
        del self._kept[index]

    def evaluate(self, lengths: Sequence[int], *, every: bool = False, erase: bool = True) -> float:
        """Evaluate arbitrary tokens of the first sequences in one batch: `lengths[i]` (at least 1)
        tokens of sequence i, at most n_batch together. Computes the logits of the last token of
        each sequence, or of `every` token. Returns the seconds until the device has finished. The
        tokens are forgotten; with `erase`, their cells are cleared as well."""
        self.batch.clear()
        for sequence, length in enumerate(lengths):
            # Different tokens, which use different experts.
            tokens = (7919 * np.arange(length, dtype=np.int32) + sequence) % self.model.n_vocab
            self.batch.add(tokens, 0, sequence, output=length if every else 1)
        started = system.now()
        try:
            self.decode()
            self.synchronize()
            return system.now() - started
        finally:
            self.clear(erase=erase)

    def clear(self, *, erase: bool) -> None:
        """Forget the tokens of all sequences; with `erase`, clear their cells as well."""
        C.llama_memory_clear(self._memory, erase)
        if self._positions is not None:
            self._positions.clear()

    def set_sampler(self, sequence: int, chain: Any) -> bool:
        """Let the device apply `chain` to the logits of `sequence` from the next decode on (None:
        stop). Returns False if the device can't. While a chain is set, a batch may have at most one
        output of `sequence`, and the chain must not be freed."""
        return bool(C.llama_set_sampler(self._ctx, sequence, chain))

    def remove(self, sequence: int, start: int) -> bool:
        """Remove the tokens of `sequence` from number `start` on. Returns False if the memory can't
        be cut there: then nothing was removed, or the remaining tokens are unusable."""
        position = self.position(sequence, start)
        if not C.llama_memory_seq_rm(self._memory, sequence, position, -1):
            return False
        if self._positions is not None:
            self._positions.cut(sequence, start)
        return self._sees_back_from(sequence, position)

    def _sees_back_from(self, sequence: int, position: int) -> bool:
        """True if the sliding window that ends before `position` is complete: llama.cpp drops cells
        that have left the window of the last token."""
        if not self._window or position == 0:
            return True
        return position >= self._first_seen(sequence)

    def _first_seen(self, sequence: int) -> int:
        """The first position with a complete sliding window. llama.cpp drops cells from the oldest
        on, so the remaining ones have no gaps."""
        first = int(C.llama_memory_seq_pos_min(self._memory, sequence))
        if first < 0:  # empty
            return self.n_ctx
        return first + self._window if first else 0

    def first_cut(self, sequence: int) -> int:
        """The first token number at which `remove` can cut `sequence`; at most its end."""
        if self.is_cuttable:
            return 0
        if self.model.is_recurrent:
            return self._end(sequence)
        seen, places = self._first_seen(sequence), self._positions
        return min(self._end(sequence), seen if places is None else places.number(sequence, seen))

    def first_cut_of_copy(self, n_tokens: int) -> int:
        """`first_cut` of a sequence of that length after `restore_sequence`. Copies don't contain
        cells that have left a sliding window."""
        whole = self.model.is_recurrent or (self._window and n_tokens > self._window)
        return n_tokens if whole else 0

    def _end(self, sequence: int) -> int:
        """The number of tokens of `sequence`."""
        highest = int(C.llama_memory_seq_pos_max(self._memory, sequence))
        return highest + 1 if self._positions is None else self._positions.end(sequence, highest)

    def save(self, sequence: int) -> StateArray | None:
        """A copy of the part of the state of `sequence` that can't be cut: its recurrent state or
        sliding window. None if there is no memory for it."""
        try:
            return self._copied(sequence, _PARTIAL)
        except BackendError:
            return None

    def rewind(self, sequence: int, n: int, state: StateArray) -> bool:
        """Keep only the first `n` tokens of `sequence`; `state` is the result of `save` after them.
        If that fails, `sequence` is empty, and the result is False."""
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        done = (
            C.llama_state_seq_set_data_ext(self._ctx, pointer, len(state), sequence, _PARTIAL)
            and self.remove(sequence, n)
            and self._end(sequence) == n
        )
        if not done:
            self.remove(sequence, 0)
        return bool(done)

    def copy(self, source: int, target: int, n: int, state: StateArray | None = None) -> bool:
        """Give the empty sequence `target` the first `n` tokens of `source`, too: shared cells in a
        unified cache, copied ones otherwise. `state` is needed if `source` can't be cut at `n`.
        Returns False, with an empty `target`, if that is impossible."""
        if n < self.first_cut(source):
            if state is None:
                return False
        else:
            state = None
        position = self.position(source, n)
        if self._positions is not None:
            self._positions.copy(source, target, n)
        if self._unified:
            C.llama_memory_seq_cp(self._memory, source, target, 0, position)
        elif not self._copy_now(source, target):
            return False
        if state is None and not self.remove(target, n):
            self.remove(target, 0)
            return False
        if state is None and self._window and self._unified:
            # llama.cpp reuses cells that have left a window, but not shared ones.
            state = self.save(target)
        return state is None or self.rewind(target, n, state)

    def _copy_now(self, source: int, target: int) -> bool:
        """Copy all cells to another separate cache. `llama_memory_seq_cp` would delay such a copy
        until the next decode. Before that, the second tier might restore another text into
        `source`, which `target` would then get; or into `target`, which would then be
        overwritten."""
        try:
            if self._put_back(target, self._copied(source)):
                return True
        except BackendError as error:
            log.warning("a prefix can't be copied and is computed again: %s", error)
        self.remove(target, 0)
        return False

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        """Remove the tokens of `sequence` from position `start` up to `stop` (exclusive), and move
        the tokens after them to `start`: the next decode rotates their keys. Returns False, without
        any change, if the memory can't do that. The sequence must not share the cells."""
        if not self.can_shift:
            return False
        if not C.llama_memory_seq_rm(self._memory, sequence, start, stop):
            return False
        C.llama_memory_seq_add(self._memory, sequence, stop, -1, start - stop)
        self.moves_pending = True
        return True

    def set_adapters(self, scales: Iterable[tuple[int, float]]) -> None:
        """Sets the active LoRA adapters: (id, scale) of each."""
        pairs = list(scales)
        handles = [self.model._adapters[id] for id, _ in pairs]
        array = (C.llama_adapter_lora_p_ctypes * len(pairs))(*handles)
        strengths = (ctypes.c_float * len(pairs))(*(scale for _, scale in pairs))
        C.llama_set_adapters_lora(self._ctx, array, len(pairs), strengths)

    def state_size(self, sequence: int) -> int:
        """The size in bytes of the result of `save_sequence`."""
        size = int(C.llama_state_seq_get_size(self._ctx, sequence))
        return size if self._positions is None else size + self._positions.size(sequence)

    def save_sequence(self, sequence: int) -> StateArray:
        """A copy of the complete state of `sequence` in the KV cache. Raises `BackendError` if
        there is no memory for it."""
        state = self._copied(sequence)
        if self._positions is None:
            return state
        return np.concatenate((state, self._positions.dump(sequence)))

    def _copied(self, sequence: int, flags: int = 0) -> StateArray:
        try:
            size = int(C.llama_state_seq_get_size_ext(self._ctx, sequence, flags))
            state = np.empty(size, np.uint8)
        except MemoryError:
            raise BackendError("there is no memory for a copy of this text") from None
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = C.llama_state_seq_get_data_ext(self._ctx, pointer, size, sequence, flags)
        if n != size:
            raise BackendError("llama.cpp can't copy this text")
        return state

    def _put_back(self, sequence: int, state: StateArray) -> bool:
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return bool(C.llama_state_seq_set_data(self._ctx, pointer, len(state), sequence))

    def restore_sequence(self, sequence: int, state: StateArray, n_tokens: int) -> None:
        """Restore a copy into the empty `sequence`.

        `state` must come from `save_sequence` of the same model. Raises `BackendError` if it
        doesn't fit, or doesn't contain the tokens 0 up to `n_tokens`; then `sequence` is empty.
        """
        forget_errors()
        places = self._positions
        cells = state if places is None else places.load(sequence, state)
        if cells is None:
            raise BackendError("the state has another format")
        if not self._put_back(sequence, cells):
            self.remove(sequence, 0)
            raise failure("llama.cpp rejected the state")
        if self._end(sequence) != n_tokens:
            self.remove(sequence, 0)
            raise BackendError("the state belongs to another text")

    def close(self) -> None:
        if not self._ctx:
            return
        if self._perf:
            perf = C.llama_perf_context(self._ctx)
            perf_log.info(
                "prompts: %d tokens, %.1f ms; generating: %d decodes, %.1f ms; graphs reused: %d",
                perf.n_p_eval,
                perf.t_p_eval_ms,
                perf.n_eval,
                perf.t_eval_ms,
                perf.n_reused,
            )
        C.llama_free(self._ctx)
        self._ctx = None
        for pool in self._pools:
            pool.close()
