"""What holds for all sources of text, whatever happens to the sequences."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from specllama.engine.options.tables.speculation import SpeculationOptions, SpeculationType
from specllama.engine.worker.cache.prefix_cache import OWNER, Key
from specllama.engine.worker.speculation.source import Ask
from specllama.engine.worker.speculation.sources import text_sources
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.proposals import texts

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
"""The texts of each owner have tokens of their own: what is proposed tells whose it was."""
LEAD = list(range(4, 9)) * 4
"""So long that texts are kept."""
IDS = st.integers(0, 4)


class SourceMachine(RuleBasedStateMachine):
    """Two equal sources, the second of which only sees what the first does."""

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
        [self.source] = text_sources(options, OWNERS * OF_ONE)
        [self.twin] = text_sources(options, OWNERS * OF_ONE)
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
            asks.append(Ask(id, buffer, 0, key, n))
        found = self.source.propose(asks)
        assert self.twin.propose(asks) == found
        assert len(found) == len(asks)
        for ask, proposed in zip(asks, found, strict=True):
            owner = self.running[ask.id][0]
            assert len(proposed) <= n
            assert all(token // OF_ONE == owner for token in proposed)
            if self.type not in ("radix", "ngram-mod"):
                assert {*proposed} <= self.own[ask.id]
            for source in (self.source, self.twin):
                source.verified(ask.id, len(proposed), min(accepted, len(proposed)))

    @rule(id=IDS)
    def forget(self, id: int) -> None:
        self.source.forget(id)
        self.twin.forget(id)
        self.running.pop(id, None)

    @rule(id=IDS)
    def leave_the_slot_for_a_while(self, id: int) -> None:
        self.source.forget(id)
        self.twin.forget(id)

    def teardown(self) -> None:
        self.source.close()
        self.twin.close()


@pytest.mark.parametrize("kind", TYPES)
def test_proposals(kind: SpeculationType) -> None:
    class Machine(SourceMachine):
        type = kind

    run_state_machine_as_test(Machine)
