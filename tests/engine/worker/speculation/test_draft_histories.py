"""Random histories of texts: proposals equal the draft model's tokens, and its cells hold only
tokens that it has recorded. The context is a fake, as strict as llama.cpp."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.worker.backend import OutOfCellsError
from specllama.engine.worker.backend.batch import TokenBatch
from specllama.engine.worker.speculation.draft_model import DraftModel
from tests.support.proposals import Running, ask

pytestmark = pytest.mark.slow

N_VOCAB, EOG = 8, 7
N_BATCH, LIMIT = 48, 40


def next_token(text: Sequence[int]) -> int:
    return zlib.crc32(bytes(text)) % N_VOCAB


def said(text: Sequence[int], n: int) -> list[int]:
    """The model's next tokens."""
    found: list[int] = []
    while len(found) < n and EOG not in found:
        found.append(next_token([*text, *found]))
    return found


@dataclass
class PaperModel:
    n_vocab: int = N_VOCAB
    eog: frozenset[int] = frozenset({EOG})
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class PaperContext:
    n_seq: int
    n_cells: int
    is_cuttable: bool
    model: PaperModel = field(default_factory=PaperModel)
    n_batch: int = N_BATCH
    n_ctx_seq: int = LIMIT

    def __post_init__(self) -> None:
        self.batch = TokenBatch(self.n_batch)
        self.texts: list[list[int]] = [[] for _ in range(self.n_seq)]
        self._outputs: dict[int, list[int]] = {}

    def decode(self) -> None:
        batch = self.batch
        assert 0 < batch.n_tokens <= self.n_batch
        if sum(map(len, self.texts)) + batch.n_tokens > self.n_cells:
            raise OutOfCellsError
        self._outputs = {}
        for i in range(batch.n_tokens):
            text = self.texts[batch.sequences[i]]
            assert batch.positions[i] == len(text) < self.n_ctx_seq
            assert 0 <= batch.tokens[i] < N_VOCAB
            text.append(int(batch.tokens[i]))
            if batch.outputs[i]:
                self._outputs[i] = [*text]

    def synchronize(self) -> None:
        pass

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        row = np.zeros(N_VOCAB, np.float32)
        row[next_token(self._outputs[index])] = 1
        return row

    def remove(self, sequence: int, start: int) -> bool:
        if not self.is_cuttable and 0 < start < len(self.texts[sequence]):
            return False
        del self.texts[sequence][start:]
        return True

    def copy(self, source: int, target: int, n: int) -> bool:
        assert source != target
        assert not self.texts[target]
        assert 0 < n <= len(self.texts[source])
        if not self.is_cuttable and n < len(self.texts[source]):
            return False
        self.texts[target] = self.texts[source][:n]
        return True

    def save(self, sequence: int) -> npt.NDArray[np.uint8]:
        assert not self.is_cuttable
        return np.array(self.texts[sequence], np.uint8)

    def rewind(self, sequence: int, n: int, state: npt.NDArray[np.uint8]) -> bool:
        assert self.texts[sequence][:n] == state.tolist()
        del self.texts[sequence][n:]
        return True

    def close(self) -> None:
        pass


TOKENS = st.integers(0, N_VOCAB - 2)
GROWTH = st.one_of(
    st.integers(0, 9),  # so many of the proposed tokens were right, then comes another one
    st.lists(TOKENS, min_size=1, max_size=30),  # other tokens
    st.tuples(st.integers(0, 20), st.integers(1, 9)),  # some are taken out
)


@given(st.data(), st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from([45, 90, 500]))
@settings(max_examples=300)
def test_any_history(
    data: st.DataObject, n_seq: int, is_cuttable: bool, unified: bool, n_cells: int
) -> None:
    context = PaperContext(n_seq, n_cells, is_cuttable)
    paper: Any = context
    n_vocab = data.draw(st.sampled_from([N_VOCAB, N_VOCAB - 1]))  # of the model, without EOG
    now = [0.0]
    source = DraftModel(paper, unified=unified, n_vocab=n_vocab, limit=LIMIT, clock=lambda: now[0])
    draft = Running(source)
    beginning = data.draw(st.lists(TOKENS, min_size=1, max_size=12))
    texts: dict[int, list[int]] = {}
    proposed: dict[int, list[int]] = {}
    n_ids = 0
    for _ in range(data.draw(st.integers(1, 15))):
        while len(texts) < n_seq and data.draw(st.booleans()):
            texts[n_ids] = [*beginning, *data.draw(st.lists(TOKENS, max_size=40))]
            n_ids += 1
        now[0] += data.draw(st.floats(0, 1))
        asks = [
            ask(text, n, id=id, key=((id % 2, 1.0),))
            for id, text in texts.items()
            for n in [data.draw(st.integers(0, 9))]
        ]
        proposals = draft.propose(asks)
        assert not context.model.is_closed  # nothing has failed
        for each, proposal in zip(asks, proposals, strict=True):
            wanted = said(texts[each.id], each.n)
            assert not proposal or max(proposal) < n_vocab
            assert proposal == wanted[: len(proposal)]
            if len(texts[each.id]) > LIMIT:
                assert not proposal
            proposed[each.id] = proposal
        held = source._cache._places
        assert [place.text.view().tolist() for place in held] == context.texts
        placed = {place.state: place for place in held if place.state is not None}
        assert placed == {
            each: each.place for each in draft.states.values() if each.place is not None
        }
        for id in [*texts]:
            match data.draw(GROWTH):
                case int(n):
                    texts[id] += [*proposed[id][:n], data.draw(TOKENS)]
                case (start, n):
                    del texts[id][start : start + n]
                    texts[id].append(1)
                case other:
                    texts[id] += other
            if data.draw(st.integers(0, 4)) == 0:
                draft.leave(id)
                del texts[id]
    # No requested text blocks all others.
    asks = [
        ask(text[:LIMIT], 2, id=id, key=((id % 2, 1.0),))
        for id, text in texts.items()
        if text and next_token(text[:LIMIT]) < n_vocab
    ]
    for id in texts.keys() - {each.id for each in asks}:
        draft.leave(id)
    assert not asks or any(any(draft.propose(asks)) for _ in range(20))
    # A single text has all the cells, and is served in the end.
    for each in asks:
        draft.leave(each.id)
    text = [*beginning, 1]
    last = ask(text, 3, id=n_ids)
    readable = [token for token in said(text, 3) if token < n_vocab]
    assert any(draft.propose([last])[0] == readable for _ in range(n_seq + 2))
