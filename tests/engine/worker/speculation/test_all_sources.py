"""Properties of all sources of texts, whatever happens to the sequences."""

import weakref

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from specllama.engine.options.tables.speculation import SpeculationOptions, SpeculationType
from specllama.engine.worker.cache.texts import OWNER, Key
from specllama.engine.worker.speculation.sources import text_sources
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.proposals import Running, Text, ask, propose, texts

pytestmark = pytest.mark.slow

TYPES: tuple[SpeculationType, ...] = (
    "radix",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
OWNERS = 3
OF_ONE = 10
"""The texts of each owner have tokens of their own, so a proposal shows whose text it comes
from."""
LEAD = list(range(4, 9)) * 4
"""So long that texts are kept."""
N_IDS = 5
IDS = st.integers(0, N_IDS - 1)


class SourceMachine(RuleBasedStateMachine):
    """Two equal sources, the second of which only sees the first one's calls."""

    type: SpeculationType

    def __init__(self) -> None:
        super().__init__()
        options = SpeculationOptions(
            spec_type=(self.type,),
            spec_ngram_simple_size_n=2,
            spec_ngram_map_k_size_n=2,
            spec_ngram_map_k4v_size_n=2,
            spec_ngram_map_k4v_size_m=2,
            spec_ngram_mod_n_match=2,
            spec_ngram_mod_n_min=0,
        )
        [source] = text_sources(options, OWNERS * OF_ONE)
        [twin] = text_sources(options, OWNERS * OF_ONE)
        self.source, self.twin = Running(source), Running(twin)
        self.running: dict[int, tuple[int, TokenBuffer]] = {}  # owner and text
        self.own: dict[int, set[int]] = {}  # all tokens that a sequence has ever had

    def tokens(self, owner: int, text: list[int]) -> list[int]:
        return [owner * OF_ONE + token for token in text]

    @rule(id=IDS, owner=st.integers(0, OWNERS - 1), text=texts())
    def start(self, id: int, owner: int, text: list[int]) -> None:
        if id not in self.running:
            tokens = self.tokens(owner, [*LEAD, *text])
            self.running[id] = owner, TokenBuffer(np.array(tokens, np.int32))
            self.own[id] = {*tokens}

    @rule(id=IDS, text=texts())
    def generate(self, id: int, text: list[int]) -> None:
        if id in self.running:
            owner, buffer = self.running[id]
            for token in self.tokens(owner, text):
                buffer.append(token)
                self.own[id].add(token)

    @rule(id=IDS, start=st.integers(0, 40), length=st.integers(1, 30))
    def shift(self, id: int, start: int, length: int) -> None:
        if id in self.running:
            buffer = self.running[id][1]
            stop = min(start + length, len(buffer) - 1)
            if start < stop:
                buffer.remove(start, stop)

    @rule(ids=st.sets(IDS), n=st.integers(0, 9), accepted=st.integers(0, 9))
    def propose(self, ids: set[int], n: int, accepted: int) -> None:
        asks = []
        for id in sorted(ids & self.running.keys()):
            owner, buffer = self.running[id]
            key: Key = ((OWNER, float(owner)),)
            asks.append(Text(buffer, n, id, key))
        found = self.source.propose(asks)
        assert self.twin.propose(asks) == found
        assert len(found) == len(asks)
        for asked, proposed in zip(asks, found, strict=True):
            owner = self.running[asked.id][0]
            assert len(proposed) <= n
            assert all(token // OF_ONE == owner for token in proposed)
            if self.type not in ("radix", "ngram-mod"):
                assert {*proposed} <= self.own[asked.id]
            for source in (self.source, self.twin):
                source.verified(asked.id, len(proposed), min(accepted, len(proposed)))

    @rule(id=IDS)
    def leave(self, id: int) -> None:
        self.source.leave(id)
        self.twin.leave(id)
        self.running.pop(id, None)

    @rule(id=IDS)
    def leave_the_slot_for_a_while(self, id: int) -> None:
        self.source.leave(id)
        self.twin.leave(id)

    def teardown(self) -> None:
        """Before the texts have left."""
        self.source.source.close()
        self.twin.source.close()
        for id in range(N_IDS):
            self.leave_the_slot_for_a_while(id)


@pytest.mark.parametrize("kind", TYPES)
def test_proposals(kind: SpeculationType) -> None:
    class Machine(SourceMachine):
        type = kind

    run_state_machine_as_test(Machine)


@pytest.mark.parametrize("kind", TYPES)
def test_of_a_text_that_has_left_nothing_is_kept(kind: SpeculationType) -> None:
    [source] = text_sources(SpeculationOptions(spec_type=(kind,)), 100)
    running = Running(source)
    for id in range(20):
        propose(running, ask([*LEAD, *LEAD], id=id))
        running.verified(id, 4, 1)
        state = weakref.ref(running.states[id])
        running.leave(id)
        assert state() is None
    propose(running, ask([*LEAD, *LEAD]))
    state = weakref.ref(running.states[1])
    source.close()
    del running.states[1]
    assert state() is None, "it is the request's alone"
