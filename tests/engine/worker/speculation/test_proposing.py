"""The chosen source, the number of tokens, and what the choice learns from them."""

from collections.abc import Sequence

import pytest

from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.speculation.pace import Pace, ProposalRecord
from specllama.engine.worker.speculation.proposing import ProposalRequest, Proposing
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.scheduling import sequence
from tests.support.speculating import Eager, Timed


class KnownState(SourceState):
    """Keeps the arguments of each `verified`, and counts the calls of `detach`."""

    def __init__(self, tokens: TokenBuffer, key: Key) -> None:
        super().__init__(tokens, key)
        self.outcomes: list[tuple[int, int]] = []
        self.n_left = 0

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        self.outcomes.append((n_proposed, n_accepted))

    def detach(self) -> None:
        self.n_left += 1


class Known:
    """Proposes `tokens` whenever it is asked."""

    def __init__(self, name: str, tokens: list[int]) -> None:
        self.name, self.tokens = name, tokens
        self.states: list[KnownState] = []
        self.asks: list[Ask[KnownState]] = []

    def begin(self, tokens: TokenBuffer, key: Key) -> KnownState:
        self.states.append(KnownState(tokens, key))
        return self.states[-1]

    def propose(self, asks: Sequence[Ask[KnownState]]) -> list[list[int]]:
        self.asks += asks
        return [self.tokens[: ask.n] for ask in asks]

    def close(self) -> None:
        pass


def eager() -> Pace:
    return Eager(StepClock(64), 0.0, 64)


def test_the_first_source_with_a_proposal_is_used() -> None:
    silent, first, second = Known("a", []), Known("b", [4, 5]), Known("c", [6])
    text, record = sequence(1, [1, 2]), ProposalRecord()
    proposing = Proposing([silent, first, second], eager())
    proposing.propose([ProposalRequest(text, record, 3, p_min=0.5)], 1)
    assert [*text.proposed] == [4], "the first token says what it takes"
    proposing.propose([ProposalRequest(text, record, 3, p_min=0.5)], 1)
    assert text.proposed == (4, 5)
    assert text.n_forced == 0
    [state] = first.states
    assert first.asks == [Ask(state, 1, 0.5), Ask(state, 3, 0.5)]
    assert (state.tokens, state.key) == (text.tokens, text.text_key)
    assert silent.asks
    assert not second.states
    proposing.verified(record, Chunk(text, 1, 2, (4, 5)), 1, is_refuted=True)
    assert state.outcomes == [(2, 1)]
    assert not silent.states[0].outcomes
    record.detach()
    assert [each.n_left for each in (state, *silent.states)] == [1, 1]


def test_a_text_that_comes_back_to_a_slot_is_a_new_one_for_sources() -> None:
    source, text, record = Known("a", [4, 5]), sequence(1, [1, 2]), ProposalRecord()
    proposing = Proposing([source], eager())
    for n_states in (1, 2):
        for _ in range(2):
            proposing.propose([ProposalRequest(text, record, 3)], 1)
        assert len(source.states) == n_states
        record.detach()
        record.detach()
    assert [state.n_left for state in source.states] == [1, 1]
    proposing.verified(record, Chunk(text, 1, 2, (4, 5)), 1, is_refuted=True)
    assert [state.outcomes for state in source.states] == [[], [(2, 1)]], "of its last step"


def test_forced_tokens_replace_proposals() -> None:
    source = Known("a", [4, 5])
    text, record = sequence(1, [1, 2]), ProposalRecord()
    proposing = Proposing([source], eager())
    proposing.propose([ProposalRequest(text, record, 0, forced=[7, 8], likely=[9])], 1)
    assert (text.proposed, text.n_forced) == ((7, 8, 9), 2)
    assert not source.asks
    proposing.verified(record, Chunk(text, 1, 2, text.proposed, 2), 3, is_refuted=False)
    assert not source.states
    proposing.propose([ProposalRequest(text, record, 0)], 1)
    assert not text.proposed, "none are wanted"


def test_a_source_keeps_its_limits() -> None:
    source = Known("a", [4, 5, 6, 7])
    text, record = sequence(1, [1, 2]), ProposalRecord()
    proposing = Proposing([source], eager(), limits={"a": (0, 2)})
    for _ in range(2):
        proposing.propose([ProposalRequest(text, record, 9)], 1)
    assert text.proposed == (4, 5)
    Proposing([source], eager(), limits={"a": (5, 9)}).propose(
        [ProposalRequest(text, record, 9)], 1
    )
    assert not text.proposed, "fewer are of no use"


def test_a_costly_source_is_not_asked_for_unprofitable_tokens() -> None:
    seconds = iter(range(1000))
    source = Known("a", [4, 5, 6, 7])
    text, record = sequence(1, [1, 2]), ProposalRecord()
    pace = Timed(0.0, 64)
    proposing = Proposing([source], pace, clock=lambda: float(next(seconds)))
    for _ in range(200):
        proposing.propose([ProposalRequest(text, record, 4)], 1)
        proposing.verified(record, Chunk(text, 1, 2, text.proposed), 0, is_refuted=True)
        pace.observe(1, len(text.proposed), 0.01)
    assert len(source.asks) < 30


def test_the_cost_of_a_source_is_measured_with_one_text() -> None:
    """And with one token of each, where there are more texts than ever."""
    now = [0.0]

    class Slow(Known):
        def propose(self, asks: Sequence[Ask[KnownState]]) -> list[list[int]]:
            now[0] += max(ask.n for ask in asks)
            return super().propose(asks)

    source = Slow("a", [4, 5, 6])
    requests = [ProposalRequest(sequence(id, [1, 2]), ProposalRecord(), 9) for id in range(3)]
    proposing = Proposing([source], eager(), clock=lambda: now[0])
    numbers = []
    for _ in range(3):
        source.asks.clear()
        proposing.propose(requests, 3)
        numbers.append([ask.n for ask in source.asks])
    assert numbers == [[1], [1, 1, 1], [9, 9, 9]]


def test_a_source_that_is_wrong_is_no_second_choice() -> None:
    """If rows cost too much for a source that is always right, no other source is tried instead."""
    right, wrong = Known("a", [4, 5, 6]), Known("b", [7, 8, 9])
    now = [0.0]
    pace = Timed(0.0, 64)
    proposing = Proposing([right, wrong], pace, clock=lambda: now[0])
    numbers = {4: 0, 7: 0}
    for id in range(10):
        text, record = sequence(id, [1, 2]), ProposalRecord()
        for _ in range(100):
            proposing.propose([ProposalRequest(text, record, 3)], 1)
            proposed = text.proposed
            if proposed:
                numbers[proposed[0]] += 1
                is_right = proposed[0] == 4
                chunk = Chunk(text, 1, 2, proposed)
                proposing.verified(record, chunk, is_right * len(proposed), is_refuted=not is_right)
            pace.observe(1, len(proposed), 0.01 * (1 + len(proposed)))
        record.detach()
    assert numbers[4] > 0, "trials"
    assert numbers[7] <= 1


class Drafting:
    """A draft model: each token takes `seconds`, and so does finding no token. For the first
    `n_unread` asks it hasn't read the text."""

    name = "a"

    def __init__(self, now: list[float], seconds: float, found: list[int], n_unread: int) -> None:
        self.now, self.seconds, self.found, self.n_unread = now, seconds, found, n_unread
        self.n_asked = 0

    def begin(self, tokens: TokenBuffer, key: Key) -> SourceState:
        return SourceState(tokens, key)

    def propose(self, asks: Sequence[Ask[SourceState]]) -> list[list[int]]:
        self.n_asked += 1
        [ask] = asks
        ask.state.is_unread = self.n_asked <= self.n_unread
        found = [] if ask.state.is_unread else self.found[: ask.n]
        self.now[0] += self.seconds * max(1, len(found))
        return [found]

    def close(self) -> None:
        pass


def drafted(source: Drafting, steps: int, most: int = 8) -> float:
    """Tokens per second, as a multiple of those without; a step takes 10 ms, whatever its rows.
    All that is found is right."""
    now, text, tokens = source.now, sequence(1, [1, 2]), 0
    record = ProposalRecord()
    pace = Timed(0.0, 64)
    proposing = Proposing([source], pace, clock=lambda: now[0])
    begun = now[0]
    for _ in range(steps):
        proposing.propose([ProposalRequest(text, record, most)], 1)
        n = len(text.proposed)
        proposing.verified(record, Chunk(text, 1, 2, text.proposed), n, is_refuted=False)
        now[0] += 0.01
        pace.observe(1, n, 0.01)
        tokens += 1 + n
    return tokens * 0.01 / (now[0] - begun)


@pytest.mark.parametrize("seconds", [0.002, 0.01])
def test_a_draft_model_that_is_never_sure_costs_next_to_nothing(seconds: float) -> None:
    assert drafted(Drafting([0.0], seconds, [], 0), 1000) >= 0.97


def test_a_draft_model_that_takes_as_long_as_the_model_costs_next_to_nothing() -> None:
    assert drafted(Drafting([0.0], 0.0105, [4] * 8, 0), 1000) >= 0.97


def test_a_draft_model_that_can_not_pay_is_not_tried() -> None:
    """If finding takes as long as a step, the acceptance rate does not matter."""
    source = Drafting([0.0], 0.0101, [4] * 8, 0)
    drafted(source, 1000)
    assert source.n_asked <= 3


def test_a_fast_draft_model_that_is_sure_of_a_few_tokens_gains() -> None:
    assert drafted(Drafting([0.0], 0.001, [4, 5, 6], 0), 300) >= 2


def test_reading_a_text_does_not_count_as_drafting() -> None:
    source = Drafting([0.0], 0.02, [4] * 8, 5)
    assert drafted(source, 5) < 1
    assert source.n_asked == 5, "it is asked until it has read"
    source.seconds = 0.001
    assert drafted(source, 300) >= 3


def test_reading_many_texts_in_vain_takes_a_small_part_of_the_time() -> None:
    """Each text has to be read first, which takes as long as thirty steps."""
    source = Drafting([0.0], 0.01, [], 0)
    now = source.now
    pace = Timed(0.0, 64)
    proposing = Proposing([source], pace, clock=lambda: now[0])
    for id in range(1, 100):
        text, record = sequence(id, [1, 2]), ProposalRecord()
        n_asked = source.n_asked
        for _ in range(100):
            source.seconds = 0.3 if source.n_asked == n_asked else 0.01
            proposing.propose([ProposalRequest(text, record, 8)], 1)
            now[0] += 0.01
            pace.observe(1, 0, 0.01)
        record.detach()
    assert 9900 * 0.01 / now[0] >= 0.95
