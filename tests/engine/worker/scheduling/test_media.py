"""Chunks of texts with media: their joint evaluation, and their waits for embeddings."""

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import (
    Sequence,
    around,
    next_start,
    next_stop,
    uncut,
)
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.media_texts import LENGTHS, is_uncut, spans, text, texts
from tests.support.scheduling import run_step, scheduler, sequence

CAUSAL, WHOLE = -2, -3
N_CAUSAL, N_WHOLE = LENGTHS[CAUSAL], LENGTHS[WHOLE]


@given(texts(60), st.integers(0, 60))
def test_places(tokens: list[int], n: int) -> None:
    places = spans(tokens)
    n = min(n, len(tokens))
    kept = uncut(places, n)
    assert is_uncut(tokens[:kept])
    assert not any(is_uncut(tokens[:more]) for more in range(kept + 1, n + 1))
    span = around(places, n)
    assert (span is not None) == (n < len(tokens) and tokens[n] < 0)
    stop = next_stop(places, n)
    stop = len(tokens) if stop is None else stop
    assert len({token < 0 for token in tokens[n:stop]}) <= 1
    start = next_start(places, n)
    assert start is None or (start >= n and tokens[start] < 0)


def ready(one: Sequence, kv: FakeKV, *ids: int) -> None:
    """Sets the embeddings of these media as ready, and all embeddings of the sequence as
    complete."""
    kv.embedded.update(ids)
    one.embed(len(one.tokens) + 1000)


def test_tokens_and_embeddings_are_never_in_one_chunk() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_batch=32)
    one = sequence(1, text([1, CAUSAL, CAUSAL, 2, WHOLE]))
    s.submit(one)
    pieces = [(c.start, c.stop) for c in run_step(s, kv)]
    assert run_step(s, kv) == [], "it waits"
    assert s.n_in("encoding") == 1
    ready(one, kv, CAUSAL, WHOLE)
    for _ in range(4):
        pieces += [(c.start, c.stop) for c in run_step(s, kv)]
    assert pieces == [(0, 1), (1, 7), (7, 13), (13, 14), (14, 19)]
    assert one.generating


def test_a_waiting_sequence_delays_no_other_and_is_not_preempted() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=2, n_batch=32)
    waiting, other = sequence(1, text([1, CAUSAL])), sequence(2, [3, 4])
    s.submit(waiting)
    s.submit(other)
    run_step(s, kv)
    for _ in range(5):
        assert [c.sequence for c in run_step(s, kv)] == [other]
    s.finish(other)
    assert s.plan() == []
    assert s.active == [waiting]


def test_a_budget_cuts_causal_spans_and_no_others() -> None:
    kv = FakeKV(64, 64)
    kv.embedded.update((CAUSAL, WHOLE))
    s = scheduler(kv, n_slots=2, n_batch=32)
    s.submit(sequence(1, [1]))
    run_step(s, kv)
    one = sequence(2, text([CAUSAL, WHOLE]))
    s.submit(one)
    s.plan(2)
    ready(one, kv)
    sizes = []
    while not one.generating:
        chunks = run_step(s, kv, n_prompt=2)
        assert chunks[0].is_single, "the other one goes on"
        sizes += [c.n_tokens for c in chunks if c.span is not None]
    assert sizes == [2, 2, 2, N_WHOLE]


def test_one_span_in_a_step() -> None:
    kv = FakeKV(64, 64)
    kv.embedded.update((CAUSAL, WHOLE))
    s = scheduler(kv, n_slots=3, n_batch=32)
    media = [sequence(id, text([CAUSAL, id])) for id in (1, 2)]
    for one in media:
        one.cache_prompt = False
        s.submit(one)
    s.submit(sequence(3, [1, 2]))
    s.plan()
    for one in media:
        ready(one, kv)
    n_media = [sum(c.span is not None for c in run_step(s, kv)) for _ in range(3)]
    assert n_media == [1, 1, 0]


def test_leaving_within_a_span_keeps_the_cells_before_it() -> None:
    kv = FakeKV(64, 64)
    kv.embedded.add(CAUSAL)
    s = scheduler(kv, n_slots=1, n_batch=32)
    one = sequence(1, text([1, 1, CAUSAL, 2]))
    s.submit(one)
    run_step(s, kv)
    ready(one, kv)
    run_step(s, kv, n_prompt=4)
    assert one.n_past == 6
    s.cancel(one)
    (entry,) = s.cache.entries.values()
    assert entry.tokens.tolist() == [1, 1]


def test_a_prompt_that_ends_with_a_medium_evaluates_it_again() -> None:
    kv = FakeKV(64, 64)
    kv.embedded.add(CAUSAL)
    s = scheduler(kv, n_slots=1, n_batch=32)
    for id in (1, 2):
        one = sequence(id, text([1, 1, CAUSAL]))
        s.submit(one)
        s.plan()
        ready(one, kv)
        while not one.generating:
            run_step(s, kv)
        s.finish(one)
    assert one.n_cached == 2, "the logits of its last token are needed"


def serve(s: Scheduler, kv: FakeKV, id: int, elements: list[int]) -> Sequence:
    """Serves a text alone up to its first token, with all embeddings."""
    one = sequence(id, text(elements, 64))
    s.submit(one)
    for _ in range(50):
        if one.generating:
            break
        s.plan()
        ready(one, kv, *LENGTHS)
        run_step(s, kv)
    s.finish(one)
    return one


def test_the_second_tier_gives_no_part_of_a_medium() -> None:
    kv = FakeKV(24, 24)
    s = scheduler(kv, n_slots=1, n_batch=32, tier=FakeTier(kv))
    serve(s, kv, 1, [1, 1, 1, CAUSAL, CAUSAL, 2])
    serve(s, kv, 2, [0] * 20)
    again = serve(s, kv, 3, [1, 1, 1, CAUSAL, CAUSAL])
    assert again.n_restored == 3 + N_CAUSAL


def test_memory_that_cannot_be_cut_has_checkpoints_between_media() -> None:
    for window in (0, 4):
        kv = FakeKV(64, 64, cuttable=False, window=window)
        s = scheduler(kv, n_slots=1, n_batch=32, n_checkpoints=4)
        serve(s, kv, 1, [1, 1, 1, CAUSAL, 2, CAUSAL])
        again = serve(s, kv, 2, [1, 1, 1, CAUSAL, 2, CAUSAL])
        assert again.n_cached == 3 + N_CAUSAL + 1


def test_nothing_is_moved_beside_media() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_batch=32)
    serve(s, kv, 1, [1, 2, CAUSAL, 3, 3, 3, 3])
    one = sequence(2, [1, 3, 3, 3, 3, 4], n_reuse=2)
    s.submit(one)
    run_step(s, kv)
    assert one.n_cached == 1
