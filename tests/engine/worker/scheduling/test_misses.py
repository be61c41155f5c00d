"""Why a prompt wasn't cached, and where its tokens came from."""

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.evicted import BLOCK
from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.scheduling.misses import MIN_RUN, reusable
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Sequence
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.media_texts import texts
from tests.support.scheduling import A, run_step, scheduler, sequence

SYSTEM = list(range(100, 100 + MIN_RUN))
TEXT = list(range(4 * MIN_RUN))
MINE, YOURS = key_of([], 1), key_of([], 2)


class Stage:
    """A scheduler whose texts are served one after the other."""

    def __init__(self, kv: FakeKV, **options: Any) -> None:
        self.kv = kv
        self.s: Scheduler = scheduler(kv, **{"n_batch": 256, "n_sequences": 8, **options})
        self._id = 0

    def begin(self, tokens: SequenceOf[int], **options: Any) -> Sequence:
        """Submits a text, and serves it up to its first token."""
        self._id += 1
        one = sequence(self._id, [*tokens], **options)
        self.s.submit(one)
        while not one.generating:
            self.kv.embedded |= {token for token in tokens if token < 0}
            for each in self.s.active:
                each.embed(len(tokens))
            run_step(self.s, self.kv)
        return one

    def serve(self, tokens: SequenceOf[int], **options: Any) -> Sequence:
        one = self.begin(tokens, **options)
        self.s.finish(one)
        return one

    def why(self, tokens: SequenceOf[int], **options: Any) -> tuple[str | None, int]:
        """Serves a text. Returns the reason, and the number of cached tokens."""
        one = self.serve(tokens, **options)
        return one.miss_reason, one.n_cached


def stage(**options: Any) -> Stage:
    return Stage(FakeKV(512, 256), **options)


def test_all_that_can_be_cached_needs_no_reason() -> None:
    one = stage()
    assert one.why(TEXT) == ("new", 0)
    assert one.why(TEXT) == (None, len(TEXT) - 1)
    assert one.why([5]) == (None, 0), "only the last token, which is always evaluated"


def test_a_text_that_goes_on_is_new() -> None:
    one = stage()
    one.serve(TEXT)
    assert one.why([*TEXT, 200, 201]) == ("new", len(TEXT))


def test_a_changed_end_is_an_edit() -> None:
    one = stage()
    one.serve(TEXT)
    assert one.why([*TEXT[:40], 200, 201]) == ("edited", 40)


def test_a_changed_beginning_is_an_edit_because_the_rest_is_equal() -> None:
    one = stage()
    one.serve([*SYSTEM[:5], 1, *TEXT])
    assert one.why([*SYSTEM[:5], 2, 3, *TEXT]) == ("edited", 5)


def test_another_conversation_with_the_same_beginning_is_new() -> None:
    one = stage()
    one.serve([*SYSTEM, *TEXT])
    assert one.why([*SYSTEM, *(token + 1000 for token in TEXT)]) == ("new", len(SYSTEM))


def test_an_evicted_text() -> None:
    one = stage()
    one.serve(TEXT)
    while one.s.cache.evict():
        pass
    assert one.why([*TEXT[: BLOCK + 3], 7, 7]) == ("evicted", 0)
    assert one.why(TEXT) == ("evicted", BLOCK + 3)
    assert one.why([*TEXT[:-1], 200]) == (None, len(TEXT) - 1)


def test_a_text_that_another_one_has_taken_over_is_evicted() -> None:
    one = Stage(FakeKV(None, 256), n_slots=1)
    one.serve(TEXT)
    one.serve(SYSTEM)
    assert one.why(TEXT) == ("evicted", 0)


def test_an_erased_text_is_evicted() -> None:
    one = stage(n_slots=1)
    one.serve(TEXT)
    assert one.s.texts.erase(0) == len(TEXT)
    assert one.why(TEXT) == ("evicted", 0)


def test_an_evicted_text_of_another_key_is_new() -> None:
    one = stage()
    one.serve(TEXT, key=YOURS)
    one.s.cache.evict()
    assert one.why(TEXT, key=MINE) == ("new", 0)


def test_other_adapters() -> None:
    one = stage()
    one.serve(TEXT)
    assert one.why(TEXT, key=A) == ("adapter", 0)
    one.serve([*SYSTEM, *TEXT], key=A)
    assert one.why([*SYSTEM[:3], 9, 9]) == ("new", 0), "a few tokens are no reason"


def test_another_key_comes_last() -> None:
    one = stage()
    one.serve(TEXT, key=YOURS)
    assert one.why(TEXT, key=MINE) == ("key", 0)
    one.serve([*TEXT, *SYSTEM], key=YOURS)
    assert one.why([*TEXT[:50], *SYSTEM], key=MINE) == ("edited", 50)
    assert one.why([*TEXT[:30], *SYSTEM]) == ("key", 0), "without a key, too"


def test_other_adapters_of_another_key_are_no_reason() -> None:
    one = stage()
    one.serve(TEXT, key=(*A, *YOURS))
    assert one.why(TEXT, key=MINE)[0] != "adapter"


def test_another_medium() -> None:
    one = stage()
    one.serve([*SYSTEM, *[-2] * 6, 5])
    assert one.why([*SYSTEM, *[-5] * 4, 5]) == ("media", len(SYSTEM))
    assert one.why([*SYSTEM, 1, 2, 3])[0] == "edited", "text in the place of a medium"


@pytest.mark.parametrize("window", [0, 4])
def test_memory_that_cannot_be_cut(window: int) -> None:
    one = Stage(FakeKV(512, 256, cuttable=False, window=window), n_sequences=None)
    one.serve(TEXT)
    assert one.why([*TEXT[:40], *SYSTEM]) == ("window", 0)


def test_moved_cells() -> None:
    one = stage(n_slots=1)
    text = one.begin(TEXT)
    assert one.s.shift(text, 2, 20)
    shifted = text.tokens.view(0, text.n_past).tolist()
    one.s.finish(text)
    assert one.why([*shifted, 200]) == ("shift", 2)


def test_a_prompt_that_is_being_evaluated() -> None:
    one = Stage(FakeKV(512, 256, cuttable=False), n_sequences=4, n_batch=8)
    first, second = sequence(100, [*TEXT, 1]), sequence(101, [*TEXT, 2])
    one.s.submit(first)
    run_step(one.s, one.kv)
    one.s.submit(second)
    run_step(one.s, one.kv)
    assert second.slot >= 0
    assert (second.miss_reason, second.n_cached) == ("running", 8)


def test_a_request_without_cache() -> None:
    one = stage()
    one.serve(TEXT)
    assert one.why(TEXT, cache_prompt=False) == ("disabled", 0)


class SlowTier(FakeTier):
    """Computing is always faster."""

    def find(self, *args: object, **kwargs: object) -> None:
        return None


def test_restoring_that_takes_longer_than_computing() -> None:
    kv = FakeKV(512, 256)
    one = Stage(kv, tier=SlowTier(kv))
    one.serve(TEXT)
    one.s.cache.evict()
    assert one.why(TEXT) == ("cost", 0)


def test_restoring_that_fails() -> None:
    kv = FakeKV(512, 256)
    one = Stage(kv, tier=FakeTier(kv, fails=1))
    one.serve(TEXT)
    one.s.cache.evict()
    assert one.why(TEXT) == ("cost", 0)


def test_texts_of_the_tier_are_near_as_well() -> None:
    kv = FakeKV(512, 256)
    one = Stage(kv, tier=SlowTier(kv))
    one.serve(TEXT)
    one.serve(SYSTEM, key=A)
    while one.s.cache.evict():
        pass
    assert one.why([*TEXT[:40], 200, 201]) == ("cost", 0)
    assert one.why(SYSTEM) == ("adapter", 0)


def test_what_the_tier_restores() -> None:
    kv = FakeKV(512, 256)
    one = Stage(kv, tier=FakeTier(kv))
    one.serve(TEXT)
    one.s.cache.evict()
    back = one.serve([*TEXT, 200])
    assert (back.n_cached, back.n_restored, back.n_from_files) == (len(TEXT), len(TEXT), 0)
    assert (back.miss_reason, back.n_shared) == (None, 0)


def test_counts_of_an_earlier_admission_are_dropped() -> None:
    kv = FakeKV(512, 256)
    one = Stage(kv, tier=FakeTier(kv), n_batch=8)
    one.serve(TEXT)
    one.s.cache.evict()
    long = sequence(50, [*TEXT, *SYSTEM])
    one.s.submit(long)
    run_step(one.s, kv)
    assert long.n_restored == len(TEXT)
    one.s.pause(long)
    one.s.resume(long)
    run_step(one.s, kv)
    assert (long.n_restored, long.n_cached) == (0, len(TEXT))


def small(n_most: int = 40) -> st.SearchStrategy[list[int]]:
    """Generates texts of a small vocabulary, which often have long common prefixes."""
    runs = st.lists(st.sampled_from([SYSTEM, TEXT[:20], TEXT[5:12], [7], [8]]), min_size=1)
    return runs.map(lambda each: [token for run in each for token in run][:n_most])


@given(
    st.lists(st.tuples(small(), st.sampled_from([(), A, MINE])), max_size=5),
    small(),
    st.sampled_from([(), A, MINE]),
    st.booleans(),
    st.booleans(),
)
def test_reasons_are_true(
    before: list[tuple[list[int], Any]],
    prompt: list[int],
    key: Any,
    cuttable: bool,
    evicts: bool,
) -> None:
    one = Stage(FakeKV(512, 256, cuttable=cuttable), n_checkpoints=2)
    for tokens, its_key in before:
        one.serve(tokens, key=its_key)
    if evicts:
        while one.s.cache.evict():
            pass
    mine = [entry for entry in one.s.cache.entries.values() if entry.key == key]
    same = [_common(entry.tokens.tolist(), prompt) for entry in mine]
    last = one.serve(prompt, key=key)
    reason, n = last.miss_reason, last.n_cached
    assert (reason is None) == (n == reusable(last) == len(prompt) - 1)
    if reason in ("new", "edited", "adapter", "key"):
        assert max(same, default=0) < max(n + MIN_RUN, 1) or not cuttable
    if reason in ("key", "adapter"):
        others = [its for its in before if its[1] != key]
        assert max(_common(tokens, prompt) for tokens, _ in others) > n
    if reason == "evicted":
        texts = [tokens for tokens, its_key in before if its_key == key]
        assert max(_common(tokens, prompt) for tokens in texts) > n
    if reason == "window":
        assert not cuttable
    assert reason not in ("media", "shift", "running", "disabled", "cost")


def _common(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


@given(texts().filter(bool), texts().filter(bool))
def test_media_are_missed_as_a_whole(first: list[int], second: list[int]) -> None:
    one = Stage(FakeKV(512, 256))
    one.serve(first)
    last = one.serve(second)
    assert (last.miss_reason is None) == (last.n_cached == reusable(last))
    if last.miss_reason == "media":
        n = _common(first, second)
        assert last.n_cached <= n
        assert np.less((first[n], second[n]), 0).all()
