"""A fake KV cache, and a tier below it, which check their calls as strictly as llama.cpp does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specllama.engine.worker.cache.block_hashes import BlockHashes, HashedText
from specllama.engine.worker.cache.checkpoints import Checkpoint, Cuts, State
from specllama.engine.worker.cache.radix import Divergence
from specllama.engine.worker.cache.texts import Found, Key, Near
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.tokens import TokenArray, common_prefix
from tests.support.media_texts import is_uncut


@dataclass(eq=False)
class Cell:
    """The content of one cell of the cache, and the sequences that it is a part of."""

    token: int
    key: Key
    exact: bool
    owners: set[int]


class FakeKV:
    """Cells by sequence id and position. With `cuttable=False` it behaves like a recurrent model's
    memory or, with a `window`, like a sliding window, which has the last `window` tokens and a few
    more. If `n_cells` is None, the sequences have separate caches.

    `exact` is true for cells whose value is that of their token after all tokens before it. It is
    false for cells that were moved, or computed from moved cells.

    The tokens of a medium share positions, as with M-RoPE: a medium can be evaluated piece by
    piece but not be cut, and cells after it can't be moved. The ids of media with embeddings have
    to be in `embedded`.
    """

    def __init__(
        self,
        n_cells: int | None,
        n_ctx: int,
        cuttable: bool = True,
        shiftable: bool = True,
        window: int = 0,
    ) -> None:
        self.n_cells, self.n_ctx = n_cells, n_ctx
        self.is_cuttable, self.window = cuttable, window
        self.lost: dict[int, int] = {}  # tokens that have left the window, by sequence
        self.saved: dict[int, tuple[list[int], Key]] = {}  # by number: tokens and key of a state
        self.n_rewound = 0
        self.cuttable, self.shiftable = cuttable, cuttable and shiftable
        self.cells: dict[int, list[Cell]] = {}
        self.n_copied = 0
        self.embedded: set[int] = set()

    def text(self, sequence: int) -> list[int]:
        return [cell.token for cell in self.cells.get(sequence, [])]

    @property
    def n_used(self) -> int:
        return len({id(cell) for held in self.cells.values() for cell in held})

    def remove(self, sequence: int, start: int) -> bool:
        if 0 < start < self.first_cut(sequence):
            return False
        self._cut(sequence, start)
        return True

    def _cut(self, sequence: int, start: int) -> None:
        held = self.cells.get(sequence, [])
        assert is_uncut([cell.token for cell in held[:start]]), "a medium is cut"
        for cell in held[start:]:
            cell.owners.discard(sequence)
        self.cells[sequence] = held[:start]
        if not start:
            self.lost.pop(sequence, None)

    def first_cut(self, sequence: int) -> int:
        if self.cuttable:
            return 0
        n_held = len(self.cells.get(sequence, []))
        if not self.window:
            return n_held
        lost = self.lost.get(sequence, 0)
        return min(n_held, lost + self.window) if lost else 0

    def _lose(self, sequence: int) -> None:
        n_left = len(self.cells[sequence]) - self.window - self.window // 2
        if self.window and n_left > self.lost.get(sequence, 0):
            self.lost[sequence] = n_left

    def save(self, sequence: int) -> State | None:
        assert not self.cuttable, "there is no need for checkpoints"
        held = self.cells[sequence]
        assert is_uncut([cell.token for cell in held]), "a checkpoint is inside of a medium"
        number = len(self.saved)
        self.saved[number] = [cell.token for cell in held], held[0].key
        return np.array([number], np.uint32).view(np.uint8)

    def rewind(self, sequence: int, n: int, state: State) -> bool:
        assert len(self.cells.get(sequence, [])) >= n, "cells are missing"
        tokens, key = self.saved[int(state.view(np.uint32)[0])]
        held = self.cells[sequence][:n]
        assert [cell.token for cell in held] == tokens, "the state is of another text"
        assert {cell.key for cell in held} == {key}, "the state was computed under another key"
        assert all(cell.exact for cell in held)
        self._cut(sequence, n)
        if self.window and n > self.window:
            self.lost[sequence] = n - self.window
        self.n_rewound += 1
        return True

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        held = self.cells[sequence]
        assert 0 <= start < stop < len(held), "cut out held cells, and keep some after them"
        if not self.shiftable:
            return False
        assert all(cell.token >= 0 for cell in held), "a text with media is moved"
        for cell in held[stop:]:
            assert cell.owners == {sequence}, "cells of another sequence are moved"
            cell.exact = False
        for cell in held[start:stop]:
            cell.owners.discard(sequence)
        self.cells[sequence] = held[:start] + held[stop:]
        return True

    def copy(self, source: int, target: int, n: int, state: State | None = None) -> bool:
        held = self.cells[source]
        assert not self.cells.get(target), "the target of a copy holds cells"
        assert 0 < n <= len(held), "more is copied than is held"
        assert is_uncut([cell.token for cell in held[:n]]), "a part of a medium is shared"
        is_cut = n < self.first_cut(source)
        if is_cut and state is None:
            return False
        if self.n_cells is None:
            self.cells[target] = [Cell(c.token, c.key, c.exact, {target}) for c in held[:n]]
        else:
            for cell in held[:n]:
                cell.owners.add(target)
            self.cells[target] = held[:n]
        if lost := self.lost.get(source, 0):
            self.lost[target] = lost
        self.n_copied += n
        return not is_cut or state is None or self.rewind(target, n, state)

    def state_size(self, sequence: int) -> int:
        return len(self.cells.get(sequence, []))

    def restore(self, sequence: int, tokens: list[int], key: Key) -> None:
        assert not self.cells.get(sequence)
        assert is_uncut(tokens), "a part of a medium is restored"
        self.cells[sequence] = [Cell(token, key, True, {sequence}) for token in tokens]
        self._lose(sequence)
        self._check_cells()

    def evaluate(self, chunks: list[Chunk]) -> None:
        assert len({chunk.sequence.adapters for chunk in chunks}) <= 1, "adapters are mixed"
        assert sum(chunk.span is not None for chunk in chunks) <= 1
        for chunk in chunks:
            id, key = chunk.sequence.seq_id, chunk.sequence.key
            held = self.cells.setdefault(id, [])
            assert len(held) == chunk.start, "positions must continue without a gap"
            assert {cell.key for cell in held} <= {key}, "cells of another key are used"
            exact = all(cell.exact for cell in held)
            tokens = chunk.sequence.tokens.view(chunk.start, chunk.stop).tolist()
            self._check_kind(chunk, tokens)
            assert not chunk.proposed or (self.cuttable and chunk.is_last)
            assert not (chunk.n_pad and chunk.proposed)
            tokens += (*chunk.proposed, *[tokens[-1]] * chunk.n_pad)
            self.cells[id] = held + [Cell(token, key, exact, {id}) for token in tokens]
            assert len(self.cells[id]) <= self.n_ctx
            self._lose(id)
        self._check_cells()

    def _check_kind(self, chunk: Chunk, tokens: list[int]) -> None:
        """Checks that a decode has either tokens or embeddings."""
        span = chunk.span
        if span is None:
            assert min((*tokens, *chunk.proposed)) >= 0, "a medium is evaluated as tokens"
            return
        assert {*tokens} <= self.embedded, "there are no embeddings yet"
        assert span.start <= chunk.start < chunk.stop <= span.stop
        if span.is_whole:
            assert (chunk.start, chunk.stop) == span[:2], "its tokens attend to each other"

    def _check_cells(self) -> None:
        if self.n_cells is not None:
            assert self.n_used <= self.n_cells, "no free cell"


class FakeTier:
    """A tier that accepts all texts, and checks that their cells have the right tokens and key. A
    text is found with its state only after `delay` lookups. Every `fails`th restoration fails. An
    idle text is worth moving when `rows` have passed over each of its cells."""

    rows = 50

    def __init__(self, kv: FakeKV, delay: int = 0, fails: int = 0) -> None:
        self.kv, self.delay, self.fails = kv, delay, fails
        self.kept: list[tuple[TokenArray, Key]] = []
        self.owners: list[int] = []
        self.hashes: list[BlockHashes] = []
        # Of each text, with its first possible cut.
        self.checkpoints: list[tuple[int, Sequence[Checkpoint]]] = []
        self.looks: dict[int, int] = {}
        self.n_restorations = 0

    def offer(
        self,
        sequence: int,
        tokens: TokenArray,
        key: Key,
        checkpoints: Sequence[Checkpoint] = (),
        owner: int = 0,
    ) -> bool:
        cells = self.kv.cells[sequence]
        assert [cell.token for cell in cells] == tokens.tolist()
        assert is_uncut(tokens.tolist())
        assert all(cell.exact and cell.key == key for cell in cells)
        for each in checkpoints:
            saved, its_key = self.kv.saved[int(each.state.view(np.uint32)[0])]
            assert (saved, its_key) == (tokens[: each.n].tolist(), key)
        self.checkpoints.append((self.kv.first_cut(sequence), checkpoints))
        self.kept.append((tokens.copy(), key))
        self.owners.append(owner)
        self.hashes.append(BlockHashes())
        return True

    def is_worth(self, n_tokens: int, n_bytes: int, n_passed: float) -> bool:
        return n_passed >= self.rows * n_tokens

    def restorable(self) -> Iterator[HashedText]:
        for (tokens, key), hashes in zip(reversed(self.kept), reversed(self.hashes), strict=True):
            yield HashedText(tokens, key, hashes)

    def find(self, tokens: TokenArray, key: Key, n_held: int) -> Found | None:
        best, found = n_held, None
        for i, (text, its_key) in enumerate(self.kept):
            first, checkpoints = self.checkpoints[i]
            cuts = Cuts(first, tuple(each.n for each in checkpoints))
            n = cuts.reachable(common_prefix(text, tokens))
            if its_key == key and n > best:
                best, found = n, i
        if found is None:
            return None
        self.looks[found] = self.looks.get(found, 0) + 1
        length = len(self.kept[found][0])
        return Found(best, length, found if self.looks[found] > self.delay else None)

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        return max((common_prefix(text, tokens) for text, k in self.kept if k == key), default=0)

    def near(self, tokens: TokenArray, key: Key, n_rest: int) -> Near:
        best = Near(Divergence(0, 0, tokens[:0]), 0)
        for i, (text, its_key) in enumerate(self.kept):
            n = common_prefix(text, tokens) if its_key == key else 0
            first, checkpoints = self.checkpoints[i]
            n_usable = Cuts(first, tuple(each.n for each in checkpoints)).reachable(n)
            best = best._replace(n_usable=max(n_usable, best.n_usable))
            if n > best.at.n:
                best = best._replace(at=Divergence(n, len(text), text[n : n + n_rest]))
        return best

    def keys(self) -> Iterator[Key]:
        return (key for _, key in self.kept)

    def n_bytes_of(self, owner: int) -> int:
        return sum(
            len(text) for (text, _), o in zip(self.kept, self.owners, strict=True) if o == owner
        )

    def drop_oldest_of(self, owner: int) -> bool:
        """Empties the text, so that the others keep their numbers."""
        for i, (text, key) in enumerate(self.kept):
            if self.owners[i] == owner and len(text):
                self.kept[i] = (text[:0], key)
                return True
        return False

    def restore(self, sequence: int, found: Found) -> Sequence[Checkpoint] | None:
        self.n_restorations += 1
        assert isinstance(found.text, int)
        tokens, key = self.kept[found.text]
        if self.fails and self.n_restorations % self.fails == 0:
            return None
        self.kv.restore(sequence, tokens.tolist(), key)
        return self.checkpoints[found.text][1]
