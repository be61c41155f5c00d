"""A stand-in for the computing part of llama.cpp: contexts, their memory, logits.

Vocabulary and samplers are the library's own. A token's logits follow from the hash of the cells
that it attended to (`tests.simulation.memory`), so a text shows whether each of its cells is right.
"""

import builtins
import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.wire.devices import CPU
from specllama.engine.worker.backend import context as context_module
from specllama.engine.worker.backend import holdings
from specllama.engine.worker.backend.candidates import Candidates
from tests.simulation.memory import (
    BatchToken,
    Cells,
    Hashes,
    Kind,
    StateError,
    States,
    combined,
    mixed_each,
)

PARTIAL_ONLY = 1
"""LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY."""
REFUSALS = (1, -1)
"""Statuses of `llama_decode` that come before anything is evaluated."""
N_FOLLOWING = 16
"""The number of tokens that mostly follow others: few, so that texts repeat themselves soon."""
FASTER = 20
"""The speed of a draft model relative to the model."""
LIKELY = 6.0
"""The logit of the token that mostly follows another one; hashes give the others 0 to 8."""


@dataclass(frozen=True)
class ModelShape:
    """The metadata of a model."""

    kind: Kind = "dense"
    n_ctx_train: int = 1 << 16
    window: int = 0
    n_embd: int = 8
    n_layer: int = 2
    number: int = 0
    """Models with other numbers have other weights."""

    @property
    def has_state(self) -> bool:
        return self.kind in ("recurrent", "hybrid")


@dataclass(frozen=True)
class Speed:
    """The seconds that a decode takes."""

    per_decode: float = 2e-3
    per_token: float = 2e-4

    def seconds(self, n_tokens: int) -> float:
        return self.per_decode + self.per_token * n_tokens


@dataclass
class Fault:
    """A failure of a decode, with `status`; a failed computation fails in micro-batch `at`."""

    status: int
    at: int = 0


class Memory:
    """A context's memory of its sequences: KV caches and recurrent states, as the model's kind
    has."""

    def __init__(self, shape: ModelShape, params: Any) -> None:
        n, unified = int(params.n_seq_max), bool(params.kv_unified)
        n_streams = 1 if unified else n
        size = -(-int(params.n_ctx) // (n_streams * 256)) * 256
        self.n_ctx, self.n_ctx_seq = size * n_streams, size
        self.cells: list[Cells] = []
        self.states = States() if shape.has_state else None
        if shape.kind != "recurrent":
            self.cells.append(Cells(n_streams, size, n))
        if shape.kind == "window":
            small = shape.window * (n if unified else 1) + int(params.n_ubatch)
            small = size if params.swa_full else min(size, -(-small // 256) * 256)
            self.cells.append(Cells(n_streams, small, n, shape.window))

    def clear(self) -> None:
        for cells in self.cells:
            cells.clear()
        if self.states is not None:
            self.states.clear()

    def remove(self, sequence: int, start: int, stop: int) -> bool:
        if self.states is not None and not self.states.remove(sequence, start, stop):
            return False
        for cells in self.cells:
            cells.remove(sequence, start, stop)
        return True

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        for cells in self.cells:
            cells.copy(source, target, start, stop)
        if self.states is not None:
            self.states.copy(source, target)

    def move(self, sequence: int, start: int, stop: int, by: int) -> None:
        for cells in self.cells:
            cells.move(sequence, start, stop, by)
        if self.states is not None:
            self.states.move(sequence, start, stop, by)

    @property
    def can_move(self) -> bool:
        return len({cells.size for cells in self.cells}) < 2

    def lowest(self, sequence: int) -> int:
        lowest = [cells.lowest(sequence) for cells in self.cells[-1:]]
        lowest += [self.states.position(sequence)] if self.states is not None else []
        return max(lowest)

    def highest(self, sequence: int) -> int:
        highest = [cells.highest(sequence) for cells in self.cells[-1:]]
        highest += [self.states.position(sequence)] if self.states is not None else []
        return min(highest)

    def save(self, sequence: int, *, partial: bool) -> npt.NDArray[np.uint8]:
        """Returns a state: the number of rows of each part, then the rows."""
        parts = [cells.save(sequence) for cells in self._saved(partial)]
        if self.states is not None:
            parts.append(self.states.save(sequence))
        sizes = np.array([len(part) for part in parts], np.int64)
        return np.concatenate([sizes, *(part.ravel() for part in parts)]).view(np.uint8)

    def _saved(self, partial: bool) -> list[Cells]:
        """A partial state has only the parts of the memory that can't be cut."""
        if not partial:
            return self.cells
        return self.cells[1:]

    def load(self, sequence: int, state: npt.NDArray[np.uint8], *, partial: bool) -> None:
        """Restores a saved state. Raises `StateError` for a state of another kind of memory, or if
        there is no room."""
        cells = self._saved(partial)
        widths = [3] * len(cells) + ([2] if self.states is not None else [])
        if len(state) % 8 or len(state) < 8 * len(widths):
            raise StateError
        numbers = state.view(np.int64)
        sizes, rest = numbers[: len(widths)].tolist(), numbers[len(widths) :]
        if min(sizes) < 0 or sum(n * width for n, width in zip(sizes, widths, strict=True)) != len(
            rest
        ):
            raise StateError
        parts = []
        for n, width in zip(sizes, widths, strict=True):
            parts.append(rest[: n * width].reshape(n, width))
            rest = rest[n * width :]
        for each, part in zip(cells, parts, strict=False):
            each.load(sequence, part)
        if self.states is not None:
            self.states.load(sequence, parts[-1])

    def lose(self, sequence: int, *, partial: bool) -> None:
        """Sets the memory's state after a failed restoration: the affected parts are empty."""
        for cells in self._saved(partial):
            cells.remove(sequence, 0, -1)
        if self.states is not None:
            self.states.remove(sequence, 0, -1)


class ContextStandIn:
    """A llama_context."""

    def __init__(
        self, shape: ModelShape, params: Any, n_vocab: int, library: "LibraryStandIn"
    ) -> None:
        self.shape = shape
        self._library = library
        self.n_batch = min(int(params.n_batch), int(params.n_ctx))
        self.n_ubatch = min(self.n_batch, int(params.n_ubatch))
        self.memory = Memory(shape, params)
        self.adapters = 0
        self._weights = combined(shape.number, int(params.type_k))
        self.is_causal = True
        self.candidates = Candidates(n_vocab)
        self._n_vocab = n_vocab
        self._rows: npt.NDArray[np.float32] = np.zeros((0, n_vocab), np.float32)
        self._row_of: dict[int, int] = {}
        self.embeds = bool(params.embeddings)
        self._vectors: dict[int, npt.NDArray[np.float32]] = {}
        self._numbers = np.arange(n_vocab, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        likely = mixed_each(np.arange(N_FOLLOWING, dtype=np.uint64)) % np.uint64(n_vocab)
        self._likely: list[int] = likely.tolist()

    # ---- evaluating ----------------------------------------------------------------------

    def decode(self, batch: Any) -> int:
        """Evaluates a batch, and returns the status of `llama_decode`."""
        tokens, wanted = _tokens(batch, self.shape.n_embd)
        assert 0 < len(tokens) <= self.n_batch
        self._row_of = {}
        if not self._continues(tokens):
            self._library.report("a batch has positions that don't follow those of a sequence")
            return -1
        for cells in self.memory.cells:
            cells.update()
        parts = [tokens[i : i + self.n_ubatch] for i in range(0, len(tokens), self.n_ubatch)]
        if (places := self._places(parts)) is None:
            return 1
        faults = self._library.faults
        fault = faults.pop(0) if faults else None
        if fault is not None and fault.status in REFUSALS:
            return fault.status
        hashes: list[int] = []
        for number, (part, cells_of) in enumerate(zip(parts, places, strict=True)):
            for cells, of_part in zip(self.memory.cells, cells_of, strict=True):
                cells.place(part, of_part)
            if fault is not None and fault.at % len(parts) == number:
                self._take_back(part)
                return fault.status
            hashes += self._compute(part, cells_of)
        if self.embeds:
            last = {token.sequence: value for token, value in zip(tokens, hashes, strict=True)}
            for sequence, value in last.items():
                self._vectors[sequence] = self._vector(value)
        else:
            self._set_rows(tokens, hashes, wanted)
        self._library.compute(len(tokens), self.shape)
        return 0

    def _continues(self, tokens: list[BatchToken]) -> bool:
        """True if the positions of each sequence continue its earlier ones."""
        last: dict[int, int] = {}
        for token in tokens:
            before = last.get(token.sequence)
            if before is None:
                before = self.memory.highest(token.sequence)
            if token.position != before + 1:
                return False
            last[token.sequence] = token.position
        return True

    def _places(self, parts: list[list[BatchToken]]) -> list[list[list[int]]] | None:
        """Returns the cells of each micro-batch's tokens in each part of the memory; None if there
        is no room for all."""
        found = []
        for cells in self.memory.cells:
            if (places := cells.try_to_place(parts)) is None:
                return None
            found.append(places)
        return [[each[number] for each in found] for number in range(len(parts))]

    def _take_back(self, part: list[BatchToken]) -> None:
        first: dict[int, int] = {}
        for token in part:
            first.setdefault(token.sequence, token.position)
        for sequence, position in first.items():
            self.memory.remove(sequence, position, -1)

    def _compute(self, part: list[BatchToken], places: list[list[int]]) -> list[int]:
        """Returns the hash of each token in order, because each one attends to the tokens before
        it."""
        hashes: list[int] = []
        whole = combined(*(token.value for token in part)) if not self.is_causal else 0
        readers = [cells.reader() for cells in self.memory.cells]
        for number, token in enumerate(part):
            value, position, sequence = token
            seen = [reader.attended(sequence, position) for reader in readers]
            if self.memory.states is not None:
                seen.append(self.memory.states.advance(token, combined(self.adapters, *seen)))
            hashed = combined(value, position, self.adapters, whole, self._weights, *seen)
            for reader, of_part in zip(readers, places, strict=True):
                reader.write(sequence, of_part[number], position, hashed)
            hashes.append(hashed)
        return hashes

    # ---- outputs -------------------------------------------------------------------------

    def _set_rows(self, tokens: list[BatchToken], hashes: list[int], wanted: list[int]) -> None:
        indices = [index for index, is_wanted in enumerate(wanted) if is_wanted]
        if len(indices) > len(self._rows):
            self._rows = np.zeros((2 * len(indices), self._n_vocab), np.float32)
        if indices:
            self._row_of = {index: row for row, index in enumerate(indices)}
            values = np.array([hashes[index] for index in indices], np.uint64)
            last = [tokens[index].value for index in indices]
            self._rows[: len(indices)] = self._logits(last, values)

    def _logits(self, tokens: list[int], values: Hashes) -> npt.NDArray[np.float32]:
        """Returns the logits after these tokens, whose hashes are `values`. A token mostly has the
        same successor, so that a text repeats itself and can be guessed. A wrong cell changes all
        logits, and the successor of every few tokens."""
        bits: Hashes = mixed_each(self._numbers ^ values[:, np.newaxis])
        logits = (bits >> np.uint64(44)).astype(np.float32) * np.float32(8 / (1 << 20))
        likely = [self._likely[token % N_FOLLOWING] for token in tokens]
        logits[range(len(tokens)), likely] += np.float32(LIKELY)
        return logits

    def _vector(self, value: int) -> npt.NDArray[np.float32]:
        numbers = np.arange(self.shape.n_embd, dtype=np.uint64) ^ np.uint64(value)
        return (mixed_each(numbers) >> np.uint64(40)).astype(np.float32) - np.float32(1 << 23)

    def vector_address(self, sequence: int) -> Any:
        """Returns the address of the vector of the last token of `sequence`."""
        pointer = ctypes.POINTER(ctypes.c_float)
        return self._vectors[sequence].ctypes.data_as(pointer)

    def logits_address(self, index: int) -> int | None:
        row = self._row_of.get(index)
        if row is None:
            return None
        return int(self._rows.ctypes.data) + row * 4 * self._n_vocab

    def row(self, index: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._rows[self._row_of[index]]
        return row


def _tokens(batch: Any, n_embd: int) -> tuple[list[BatchToken], list[int]]:
    """Returns the tokens of a llama_batch, and for each whether its output is requested (0 or
    1)."""
    n = int(batch.n_tokens)
    sequences = [each[0] for each in batch.seq_id[:n]]
    if batch.token:
        values = batch.token[:n]
    else:
        rows = np.ctypeslib.as_array(batch.embd, (n, n_embd))
        values = [combined(*row.view(np.uint32).tolist()) for row in rows]
    return list(map(BatchToken, values, batch.pos[:n], sequences)), batch.logits[:n]


@dataclass
class LibraryStandIn:
    """The functions of llama.cpp that contexts need, for one model of this `shape`."""

    shape: ModelShape = ModelShape()
    others: dict[int, ModelShape] = field(default_factory=dict)
    """The shapes of other models, by handle."""
    adapters: list[Any] = field(default_factory=list)
    """The handles of the model's adapters."""
    is_device: bool = False
    """Whether all layers are on a device, which computes in parallel with the host."""
    speed: Speed = Speed()
    spend: Callable[[float], None] = lambda seconds: None
    """Called with the seconds that a decode takes."""
    happens: Callable[[str], bool] = lambda what: False
    """Decides for each call whether it fails: a sequence can't be cut ("seq_rm"), there is no
    memory for a copy of its state ("memory"), or a state can't be set ("state")."""
    report: Callable[[str], None] = lambda what: None
    """Called with a description of each wrong call."""
    faults: list[Fault] = field(default_factory=list)
    """The failures of the next decodes."""
    n_decodes: int = 0
    contexts: list["ContextStandIn"] = field(default_factory=list)
    """All contexts, in the order of their creation."""

    def shape_of(self, model: Any) -> ModelShape:
        return self.others.get(int(model), self.shape)

    def n_cells_used(self) -> int | None:
        """Returns the number of cells with tokens in the newest context of the model. None if it
        has no cells, or several caches, of which one frees cells by itself."""
        cells = self.memory.cells
        return cells[0].n_used if len(cells) == 1 else None

    @property
    def memory(self) -> Memory:
        """The memory of the newest context of the model."""
        return [context for context in self.contexts if context.shape is self.shape][-1].memory

    def compute(self, n_tokens: int, shape: ModelShape) -> None:
        self.n_decodes += 1
        seconds = self.speed.seconds(n_tokens)
        self.spend(seconds if shape is self.shape else seconds / FASTER)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def functions(current: Callable[[], LibraryStandIn]) -> dict[str, Callable[..., Any]]:
    """Returns replacements of the bindings, by name, for the process whose library is `current`."""

    def n_vocab(model: Any) -> int:
        return int(C.llama_vocab_n_tokens(C.llama_model_get_vocab(model)))

    def init(model: Any, params: Any) -> ContextStandIn:
        library = current()
        shape = library.shape_of(model)
        params.n_ctx = params.n_ctx or shape.n_ctx_train
        holdings.layers.clear()
        holdings.layers["SIM0" if library.is_device else CPU] = shape.n_layer
        context = ContextStandIn(shape, params, n_vocab(model), library)
        library.contexts.append(context)
        return context

    def set_adapters(context: ContextStandIn, handles: Any, n: int, scales: Any) -> int:
        known = [_address(each) for each in current().adapters]
        keys = [(known.index(_address(handles[i])), float(scales[i]).hex()) for i in range(n)]
        context.adapters = combined(*repr(keys).encode()) if keys else 0
        return 0

    def set_causal(context: ContextStandIn, is_causal: bool) -> None:
        context.is_causal = is_causal

    def remove(memory: Memory, sequence: int, start: int, stop: int) -> bool:
        if start > 0 and current().happens("seq_rm"):
            return False
        return memory.remove(sequence, start, stop)

    def size(context: ContextStandIn, sequence: int, flags: int = 0) -> int:
        return len(context.memory.save(sequence, partial=flags == PARTIAL_ONLY))

    def get(context: ContextStandIn, target: Any, size: int, sequence: int, flags: int = 0) -> int:
        state = context.memory.save(sequence, partial=flags == PARTIAL_ONLY)
        if len(state) > size or current().happens("memory"):
            return 0
        np.ctypeslib.as_array(target, (size,))[: len(state)] = state
        return len(state)

    def put(context: ContextStandIn, source: Any, size: int, sequence: int, flags: int = 0) -> int:
        state = np.ctypeslib.as_array(source, (size,)).copy() if size else np.empty(0, np.uint8)
        partial = flags == PARTIAL_ONLY
        if current().happens("state"):
            context.memory.lose(sequence, partial=partial)
            return 0
        try:
            context.memory.load(sequence, state, partial=partial)
        except StateError:
            return 0
        return size

    def sample(chain: Any, context: ContextStandIn, index: int) -> int:
        candidates = context.candidates
        candidates.fill(None, context.row(index))
        C.llama_sampler_apply(chain, candidates.pointer)
        token, _ = candidates.chosen
        C.llama_sampler_accept(chain, token)
        return token

    return {
        "llama_init_from_model": init,
        "llama_free": lambda context: None,
        "llama_get_memory": lambda context: context.memory,
        "llama_n_ctx": lambda context: context.memory.n_ctx,
        "llama_n_ctx_seq": lambda context: context.memory.n_ctx_seq,
        "llama_n_batch": lambda context: context.n_batch,
        "llama_n_ubatch": lambda context: context.n_ubatch,
        "llama_decode": lambda context, batch: context.decode(batch),
        "llama_synchronize": lambda context: None,
        "llama_set_warmup": lambda context, on: None,
        "llama_perf_context_reset": lambda context: None,
        "llama_set_causal_attn": set_causal,
        "llama_set_adapters_lora": set_adapters,
        "llama_memory_clear": lambda memory, data: memory.clear(),
        "llama_memory_can_shift": lambda memory: memory.can_move,
        "llama_memory_seq_rm": remove,
        "llama_memory_seq_cp": lambda memory, *args: memory.copy(*args),
        "llama_memory_seq_add": lambda memory, *args: memory.move(*args),
        "llama_memory_seq_pos_min": lambda memory, sequence: memory.lowest(sequence),
        "llama_memory_seq_pos_max": lambda memory, sequence: memory.highest(sequence),
        "llama_state_seq_get_size": size,
        "llama_state_seq_get_size_ext": size,
        "llama_state_seq_get_data": get,
        "llama_state_seq_get_data_ext": get,
        "llama_state_seq_set_data": put,
        "llama_state_seq_set_data_ext": put,
        "llama_sampler_sample": sample,
        "llama_model_n_ctx_train": lambda model: current().shape_of(model).n_ctx_train,
        "llama_model_is_recurrent": lambda model: current().shape_of(model).kind == "recurrent",
        "llama_model_is_hybrid": lambda model: current().shape_of(model).kind == "hybrid",
        "llama_model_n_swa": lambda model: current().shape_of(model).window,
        "llama_model_n_embd": lambda model: current().shape_of(model).n_embd,
        "llama_model_n_embd_inp": lambda model: current().shape_of(model).n_embd,
        "llama_pooling_type": lambda context: C.LLAMA_POOLING_TYPE_LAST,
        "llama_get_causal_attn": lambda context: context.is_causal,
        "llama_model_n_embd_out": lambda model: current().shape_of(model).n_embd,
        "llama_get_embeddings_seq": lambda context, sequence: context.vector_address(sequence),
        "llama_model_n_layer": lambda model: current().shape_of(model).n_layer,
        "llama_model_has_decoder": lambda model: True,
        "llama_model_has_encoder": lambda model: False,
    }


@contextmanager
def replaced(target: object, names: Mapping[str, Any]) -> Iterator[None]:
    """Replaces attributes of `target` while the context is open, or built-in functions in a module.
    Raises AttributeError for any other name."""
    before = {name: getattr(target, name) for name in names if not _is_built_in(target, name)}
    for name, value in names.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name in names:
            if name in before:
                setattr(target, name, before[name])
            else:
                delattr(target, name)


def _is_built_in(target: object, name: str) -> bool:
    return isinstance(target, ModuleType) and not hasattr(target, name) and hasattr(builtins, name)


@contextmanager
def installed(current: Callable[[], LibraryStandIn]) -> Iterator[None]:
    """Replaces llama.cpp's contexts by those of the `current` library while the context is open."""
    layers = {**holdings.layers}
    address = {"_logits_address": lambda context, index: context.logits_address(index)}
    with replaced(C, functions(current)), replaced(context_module, address):
        try:
            yield
        finally:
            holdings.layers.clear()
            holdings.layers.update(layers)
