"""The choice of a replica: the rules one by one, and random histories that are compared with a
plain reading of the rules."""

from collections import Counter
from collections.abc import Collection, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specllama.engine.fleet.placing import (
    ANSWER_STEPS,
    CONFIRM_SECONDS,
    GUESSED_ANSWER,
    GUESSED_TOKEN,
    SETTLE_SECONDS,
    SILENT_SECONDS,
    SIMILAR,
    WORK_WEIGHT,
    PlacedRequest,
    Placing,
    WantedPrompt,
)
from specllama.engine.wire.replies import PromptMedium
from specllama.engine.wire.stats import ReplicaLoad
from tests.support.covering import examples

BLOCK = 10
PACE = 0.01  # seconds of a prompt token


STEP = 0.02  # seconds of a step


def load(
    n_tokens: int = 0,
    *,
    pace: float = PACE,
    step: float = STEP,
    busy: int = 0,
    wait: float = 0.0,
) -> ReplicaLoad:
    return ReplicaLoad(
        n_slots=4,
        n_busy=busy,
        n_tokens_waiting=n_tokens,
        prompt_seconds=pace,
        step_seconds=step,
        wait_seconds=wait,
    )


def fleet(*names: str, n_most: int = 1000) -> Placing:
    found = Placing(Random(1), BLOCK, n_most=n_most)
    for name in names:
        found.join(name, load(), 0.0)
    return found


def prompt(n_blocks: int, text: int = 0) -> WantedPrompt:
    """A prompt of whole blocks and one more token. Texts differ from their first blocks on."""
    return WantedPrompt(BLOCK * n_blocks + 1, blocks(n_blocks, text))


def blocks(n: int, text: int = 0) -> list[int]:
    return [1000 * text + i for i in range(n)]


def placed_at(
    placing: Placing, wanted: WantedPrompt, now: float = 0.5, without: Collection[str] = ()
) -> PlacedRequest:
    found = placing.place(wanted, now, without)
    assert found is not None
    return found


# ---- caches -----------------------------------------------------------------------------


def test_the_longest_prefix_is_followed() -> None:
    placing = fleet("a", "b", "c")
    placing.report("a", load(), blocks(3), (), 0.4)
    placing.report("b", load(), blocks(8), (), 0.4)
    found = placed_at(placing, prompt(10))
    assert (found.member, found.reason, found.n_blocks) == ("b", "prefix", 8)
    assert found.n_tokens == 21


def test_the_last_token_is_always_computed() -> None:
    placing = fleet("a")
    placing.report("a", load(), blocks(3), (), 0.4)
    assert placed_at(placing, WantedPrompt(3 * BLOCK, blocks(3))).n_tokens == 1


def test_removed_blocks_do_not_count() -> None:
    placing = fleet("a", "b")
    placing.report("a", load(), blocks(8), (), 0.1)
    placing.report("b", load(), blocks(5), (), 0.1)
    placing.report("a", load(), (), blocks(8)[2:], 0.2)
    assert placed_at(placing, prompt(10)).member == "b"


def test_other_texts_do_not_count() -> None:
    placing = fleet("a", "b")
    placing.report("a", load(), blocks(8, text=1), (), 0.1)
    assert placed_at(placing, prompt(10)).reason == "new"


@given(st.integers(0, 400), st.integers(0, 40))
def test_a_prefix_is_followed_unless_the_queue_is_longer_than_it_saves(
    n_queue: int, n_held: int
) -> None:
    placing = fleet("a", "b")
    placing.report("a", load(n_queue), blocks(n_held), (), 0.0)
    placing.report("b", load(busy=1), (), (), 0.0)
    found = placed_at(placing, prompt(40), 0.0)
    with_prefix = n_queue + WORK_WEIGHT * (401 - BLOCK * n_held) + ANSWER_STEPS * STEP / PACE
    without = WORK_WEIGHT * 401 + ANSWER_STEPS * STEP / PACE
    if with_prefix > SIMILAR * without:
        assert (found.member, found.reason) == ("b", "load" if n_held else "new")
    else:  # at similar costs, the member without texts is chosen
        assert (found.member, found.reason) == ("a", "prefix" if n_held else "new")


def test_an_encoded_medium_saves_work() -> None:
    placing = fleet("a", "b")
    placing.report("b", load(), [77], (), 0.1)
    wanted = WantedPrompt(150, (), [PromptMedium(77, 100, 120)])
    found = placed_at(placing, wanted)
    assert (found.member, found.n_tokens) == ("b", 150)
    assert placed_at(fleet("a"), wanted).n_tokens == 250


def test_a_medium_in_the_cache_is_not_encoded() -> None:
    placing = fleet("a")
    placing.report("a", load(), blocks(12), (), 0.1)
    stop = 12 * BLOCK
    for media, n_tokens in (
        ([PromptMedium(77, 100, stop)], 9),
        ([PromptMedium(77, 100, stop + 1)], 109),
    ):
        wanted = WantedPrompt(stop + 9, blocks(12), media)
        assert placed_at(placing, wanted).n_tokens == n_tokens
        placing = fleet("a")
        placing.report("a", load(), blocks(12), (), 0.1)


# ---- loads ------------------------------------------------------------------------------


def test_times_are_those_of_each_member() -> None:
    placing = fleet("a")
    placing.join("b", load(pace=PACE / 4), 0.0)
    placing.report("b", load(150, pace=PACE / 4), (), (), 0.5)
    assert placed_at(placing, prompt(10)).member == "b"


def test_a_wait_for_a_slot_counts_once() -> None:
    """The estimated wait includes the prompts before it."""
    placing = fleet("a", "b")
    placing.report("a", load(100, wait=100 * PACE), (), (), 0.5)
    placing.report("b", load(130), (), (), 0.5)
    assert placed_at(placing, prompt(1)).member == "a"


def test_an_answer_is_slower_beside_many_texts() -> None:
    placing = fleet("a", "b")
    placing.report("a", load(step=2 * STEP), (), (), 0.5)
    placing.report("b", load(busy=1), (), (), 0.5)
    assert placed_at(placing, WantedPrompt(1)).member == "b"


def test_a_text_beyond_the_slots_waits_for_an_answer() -> None:
    """Four slots were idle at the last report."""
    n_tokens = int(GUESSED_ANSWER / 4 / PACE)
    placing = fleet("a", "b")
    placing.report("b", load(2 * n_tokens), (), (), 0.5)
    found = [placed_at(placing, WantedPrompt(1)).member for _ in range(9)]
    assert found[:4] == ["a"] * 4
    assert "b" in found[4:]


def test_answers_are_timed() -> None:
    def placed_after(seconds: float) -> list[object]:
        placing = fleet("a", "b")
        for _ in range(200):
            found = placed_at(placing, WantedPrompt(1), 0.0)
            placing.began(found, 0.0)
            placing.ended(found, seconds)
        placing.report("a", load(), (), (), 1.0)
        placing.report("b", load(200), (), (), 1.0)
        return [placed_at(placing, WantedPrompt(1), 1.0).member for _ in range(6)]

    assert "b" in placed_after(60.0)
    assert "b" not in placed_after(0.1)


def test_a_member_without_measured_times_has_usual_ones() -> None:
    placing = fleet()
    placing.join("a", load(100, pace=0.0, step=0.0), 0.0)
    placing.join("b", load(150), 0.0)
    placing.join("c", load(50, pace=0.0, step=0.0), 0.0)
    placing.report("a", load(100, pace=0.0, step=0.0), (), (), 0.0)
    assert placed_at(placing, WantedPrompt(1), 0.0).member == "c"
    assert placed_at(placing, WantedPrompt(1), 0.0, without=["c"]).member == "a"
    placing = fleet()
    placing.join("a", ReplicaLoad(), 0.0)
    placing.join("b", load(pace=2 * GUESSED_TOKEN, step=0.0), 0.0)
    assert placed_at(placing, WantedPrompt(100), 0.0).member == "a"


def test_equal_members_get_equally_many_requests() -> None:
    names = [f"member {i}" for i in range(20)]
    placing = fleet(*names)
    counts = Counter(placed_at(placing, WantedPrompt(5), 0.5).member for _ in range(100))
    assert counts == dict.fromkeys(names, 5)


def test_the_first_of_equal_members_differs() -> None:
    placing = fleet("a", "b", "c", "d")
    chosen = set()
    for _ in range(50):
        found = placed_at(placing, WantedPrompt(5), 0.5)
        placing.ended(found, 0.5)
        placing.report(found.member, load(), (), (), 0.5)
        chosen.add(found.member)
    assert chosen == {"a", "b", "c", "d"}


def test_requests_count_between_reports() -> None:
    placing = fleet("a", "b")
    counts = Counter(placed_at(placing, prompt(10, text), 0.5).member for text in range(1, 11))
    assert counts == {"a": 5, "b": 5}


def test_members_work_between_reports() -> None:
    placing = fleet("a", "b")
    placing.report("a", load(150), (), (), 0.0)
    placing.report("b", load(100), (), (), 1.0)  # `a` has 50 left
    assert placed_at(placing, prompt(1), 1.0).member == "a"


def test_a_report_may_be_older_than_a_request() -> None:
    placing = fleet("a", "b")
    first = placed_at(placing, prompt(10, 1), 0.5)
    placing.report(first.member, load(), (), (), 0.5 + SETTLE_SECONDS / 2)
    assert placed_at(placing, prompt(10, 2), 0.6).member != first.member


def test_an_ended_request_does_not_count() -> None:
    placing = fleet("a", "b")
    first = placed_at(placing, WantedPrompt(1), 0.5)
    placing.ended(first, 0.6)
    placing.ended(first, 0.6)
    second = placed_at(placing, WantedPrompt(1), 0.7)
    third = placed_at(placing, WantedPrompt(1), 0.7)
    assert {second.member, third.member} == {"a", "b"}


# ---- expectations -----------------------------------------------------------------------


def test_a_burst_with_a_common_prefix_goes_together() -> None:
    placing = fleet(*(f"member {i}" for i in range(10)))
    burst = [
        placed_at(placing, WantedPrompt(50 * BLOCK + 5, [*blocks(50), 9000 + i]), 0.5 + 0.01 * i)
        for i in range(10)
    ]
    assert len({each.member for each in burst}) == 1
    assert [each.n_blocks for each in burst] == [0] + 9 * [50]


def test_a_long_burst_uses_further_members() -> None:
    placing = fleet("a", "b", "c")
    burst = [placed_at(placing, WantedPrompt(20 * BLOCK + 100, blocks(20)), 0.5) for i in range(30)]
    assert {each.member for each in burst} == {"a", "b", "c"}


def test_expectations_end_without_a_report_of_the_blocks() -> None:
    placing = fleet("a", "b")
    first = placed_at(placing, prompt(20), 0.5)
    placing.began(first, 1.0)
    name = first.member
    placing.report(name, load(), (), (), 0.9 + CONFIRM_SECONDS)
    assert placed_at(placing, prompt(20), 1.0 + CONFIRM_SECONDS / 2).n_blocks == 20
    placing = fleet("a")
    first = placed_at(placing, prompt(20), 0.5)
    placing.ended(first, 1.0)
    placing.report("a", load(), (), (), 1.0 + CONFIRM_SECONDS)
    assert placed_at(placing, prompt(20), 1.0 + CONFIRM_SECONDS).n_blocks == 0


def test_expectations_of_waiting_prompts_stay() -> None:
    placing = fleet("a")
    placed_at(placing, prompt(20), 0.5)
    placing.report("a", load(), (), (), 100.0)
    assert placed_at(placing, prompt(20), 100.0).n_blocks == 20


def test_reported_blocks_stay() -> None:
    placing = fleet("a")
    first = placed_at(placing, prompt(20), 0.5)
    placing.began(first, 1.0)
    placing.report("a", load(), blocks(20), (), 2.0)
    placing.report("a", load(), (), (), 100.0)
    assert placed_at(placing, prompt(20), 100.0).n_blocks == 20


def test_a_request_that_ended_leaves_the_expectations_of_others() -> None:
    placing = fleet("a")
    cancelled = placed_at(placing, prompt(20), 0.5)
    placed_at(placing, prompt(20), 0.5)
    placing.ended(cancelled, 0.6)
    placing.report("a", load(), (), (), 50.0)
    assert placed_at(placing, prompt(20), 50.0).n_blocks == 20


# ---- members ----------------------------------------------------------------------------


def test_without_members_there_is_no_choice() -> None:
    placing = fleet()
    assert placing.place(prompt(1), 0.0) is None
    placing.join("a", load(), 0.0)
    assert placing.place(prompt(1), 0.0, without=["a", "unknown"]) is None
    assert placed_at(placing, prompt(1)).member == "a"
    placing.leave("a")
    placing.leave("a")
    assert len(placing) == 0
    assert placing.place(prompt(1), 0.0) is None


def test_a_member_that_left_and_joined_has_an_empty_cache() -> None:
    placing = fleet("a")
    placing.report("a", load(), blocks(20), (), 0.1)
    earlier = placed_at(placing, prompt(30), 0.1)
    placing.join("a", load(), 0.2)
    assert placed_at(placing, prompt(20), 0.2).n_blocks == 0
    placing.ended(earlier, 0.3)  # of the earlier member
    placing.report("a", load(), (), (), 0.4)
    assert placed_at(placing, prompt(20), 0.4).n_blocks == 20  # expected
    placing.report("gone", load(), blocks(3), (), 0.4)
    assert len(placing) == 1


def test_a_silent_member_has_no_cache() -> None:
    placing = fleet("a", "b")
    placing.report("a", load(), [*blocks(20), 77], (), 0.0)
    now = SILENT_SECONDS + 1
    placing.report("b", load(busy=1), (), (), now)
    assert [placing.age(name, now) for name in ("a", "b", "gone")] == [now, 0.0, 0.0]
    found = placed_at(placing, WantedPrompt(201, blocks(20), [PromptMedium(77, 10, 30)]), now)
    assert (found.member, found.n_blocks, found.n_tokens) == ("a", 0, 211)
    placing.report("a", load(), (), (), now)
    assert placed_at(placing, prompt(20), now).n_blocks == 20


def test_a_silent_member_gets_no_more_than_its_share() -> None:
    placing = fleet("a", "b", "c")
    chosen = Counter[object]()
    now = SILENT_SECONDS + 1
    for text in range(1, 60):
        now += 1.0
        for name in ("b", "c"):
            placing.report(name, load(), (), (), now)
        found = placed_at(placing, prompt(8, text), now)
        if found.member != "a":
            placing.ended(found, now)
        chosen[found.member] += 1
    assert chosen["a"] <= 1


def test_memory_is_bounded() -> None:
    placing = fleet("a", n_most=50)
    placing.report("a", load(), blocks(80), (), 0.1)
    assert placed_at(placing, prompt(80)).n_blocks == 50
    placing = fleet("a", n_most=50)
    for text in range(1, 20):
        placed_at(placing, prompt(30, text))
    assert len(placing._holders) == 50
    placing.leave("a")
    assert len(placing._holders) == 0


# ---- random histories -------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
TEXTS = tuple(tuple(100 * branch + i if i >= 3 else i for i in range(8)) for branch in range(4))
"""Texts with three blocks in common."""


class Histories(RuleBasedStateMachine):
    """A fleet, compared with the blocks of each member in sets."""

    @initialize(seed=st.integers(0, 5))
    def begin(self, seed: int) -> None:
        self.placing = Placing(Random(seed), BLOCK)
        self.now = 0.0
        self.reported: dict[str, set[int]] = {}
        self.loads: dict[str, int] = {}
        self.open: list[PlacedRequest] = []
        self.begun: list[tuple[float, PlacedRequest]] = []
        self.seen: dict[str, float] = {}

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        self._gone(name)
        self.placing.join(name, load(), self.now)
        self.reported[name], self.seen[name] = set(), self.now

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        self._gone(name)
        self.placing.leave(name)

    def _gone(self, name: str) -> None:
        self.reported.pop(name, None)
        self.seen.pop(name, None)
        self.open = [each for each in self.open if each.member != name]
        self.begun = [each for each in self.begun if each[1].member != name]

    @rule(
        name=st.sampled_from(NAMES),
        text=st.sampled_from(TEXTS),
        n=st.integers(0, 8),
        kept=st.integers(0, 8),
        n_tokens=st.integers(0, 300),
    )
    def report(self, name: str, text: Sequence[int], n: int, kept: int, n_tokens: int) -> None:
        added, removed = text[:n], [block for each in TEXTS for block in each[kept:]]
        self.placing.report(name, load(n_tokens), added, removed, self.now)
        if name in self.reported:
            self.reported[name] = self.reported[name] - {*removed} | {*added}
            self.seen[name] = self.now
            self._fade(name)

    @rule(text=st.sampled_from(TEXTS), n=st.integers(0, 8))
    def place(self, text: Sequence[int], n: int) -> None:
        held = {name: self._held(name, text[:n]) for name in self.reported}
        found = self.placing.place(WantedPrompt(BLOCK * n + 3, text[:n]), self.now)
        if found is None:
            assert not self.reported
            return
        assert isinstance(found.member, str)
        assert found.n_blocks == held[found.member]
        longest = max(held.values())
        is_longest = found.n_blocks == longest
        assert found.reason == ("new" if not longest else "prefix" if is_longest else "load")
        self.open.append(found)

    def _held(self, name: str, text: Sequence[int]) -> int:
        if self.now - self.seen[name] > SILENT_SECONDS:
            return 0
        begun = [each for _, each in self.begun]
        expected = {b for r in self.open + begun if r.member == name for b in r._expected}
        blocks = self.reported[name] | expected
        return next((i for i, block in enumerate(text) if block not in blocks), len(text))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.open:
            index = data.draw(st.integers(0, len(self.open) - 1))
            found = self.open.pop(index)
            assert isinstance(found.member, str)
            self.placing.ended(found, self.now)
            self.begun.append((self.now + CONFIRM_SECONDS, found))
            self._fade(found.member)

    def _fade(self, name: str) -> None:
        self.begun = [
            (end, each) for end, each in self.begun if each.member != name or end > self.now
        ]

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_index_is_not_larger_than_its_members(self) -> None:
        if hasattr(self, "placing"):
            requests = self.open + [each for _, each in self.begun]
            expected = {block for each in requests for block in each._expected}
            assert len(self.placing._holders) == len(expected.union(*self.reported.values()))
            assert self.placing.names == {*self.reported}


TestHistories = Histories.TestCase
TestHistories.settings = examples(60, stateful_step_count=40)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 200)), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_the_choice_costs_least(members: list[tuple[int, int]], n: int) -> None:
    """Each member holds a number of blocks, and has a queue of tokens."""
    placing = Placing(Random(1), BLOCK)
    for name, (n_held, n_queue) in enumerate(members):
        placing.join(name, load(n_queue), 0.0)
        placing.report(name, load(n_queue), blocks(n_held), (), 0.0)
    found = placed_at(placing, prompt(n), 0.0)
    costs = [
        PACE * (n_queue + WORK_WEIGHT * (BLOCK * (n - min(n_held, n)) + 1)) + ANSWER_STEPS * STEP
        for n_held, n_queue in members
    ]
    assert isinstance(found.member, int)
    assert costs[found.member] <= SIMILAR * min(costs) + 1e-9
