"""Preemption, refusals and reports of requests that wait, in engines with a tiny model."""

from collections.abc import Callable
from typing import Any

import pytest

from specllama.engine import system
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Accepted, Begun, Delta, Event, Failed, Finished, Queued
from specllama.engine.wire.requests import NO_TERMS, Submit, Terms, apart
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.queueing import REPORTS, RESERVED
from tests.support.playing import GREEDY, engine, play, stepped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders")]

PROMPT = "import os\n\n\ndef function(self, value):"
METERED = Terms(is_metered=True)
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "ignore_eos": True}
GUIDED: dict[str, Any] = {**GREEDY, "grammar": 'root ::= "a"*'}


def submit(
    e: Engine, id: int, prompt: str = PROMPT, terms: Terms = NO_TERMS, **params: Any
) -> list[Event]:
    given = {"n_predict": 20, **GREEDY, **params}
    message = Submit(id, [prompt], GenerationParams(**given), group=id, terms=terms)
    return e.submit(e.preparation.prepare(message))


def run(e: Engine) -> list[Event]:
    events: list[Event] = []
    while e.has_work:
        events += stepped(e)
    return events


def n_tokens(e: Engine, prompt: str = PROMPT) -> int:
    return len(e.preparation.tokenize(Submit(0, [prompt], GenerationParams())).tokens)


# ---- preemption ----------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, GUIDED], ids=str)
@pytest.mark.parametrize("options", [{"kv_unified": True}, {"kv_unified": False}], ids=str)
def test_a_preempted_text_is_the_text_that_it_would_have_been(
    model: Model, options: dict[str, Any], params: dict[str, Any]
) -> None:
    given = {"n_predict": 40, "stream": True, **params}
    plain = engine(model, parallel=1, **options)
    wanted = play(plain, [PROMPT], **{**given, "stream": False})[PROMPT]
    for n_steps in (1, 2, 5, 11):
        e = engine(model, parallel=1, cache_ram=64, **options)
        submit(e, 1, terms=Terms(priority=1), **given)
        events: list[Event] = []
        for id in range(2, 5):
            for _ in range(n_steps):
                events += stepped(e)
            submit(e, id, f"class Other{id}:", n_predict=3)
            while id not in [each.id for each in events if isinstance(each, Finished)]:
                events += stepped(e)
        events += run(e)
        own = [event for event in events if event.id == 1]
        tokens = [t for each in own if isinstance(each, Delta) for t in each.tokens]
        last = own[-1]
        assert isinstance(last, Finished)
        assert tokens + last.tokens == wanted.tokens
        assert [each.id for each in events if isinstance(each, Begun)] == [1, 2, 3, 4]
        assert [each.id for each in events if isinstance(each, Finished)] == [2, 3, 4, 1]
        stats = e.stats()
        assert stats.n_preempted == 3
        n_prompts = n_tokens(e) + sum(n_tokens(e, f"class Other{id}:") for id in range(2, 5))
        assert stats.n_prompt == n_prompts - stats.n_prompt_cached, "nothing is evaluated again"
        assert last.timings.prompt_n == last.n_prompt
        e.close()


def test_a_prompt_is_preempted_and_goes_on_where_it_was(model: Model) -> None:
    e = engine(model, parallel=1, batch_size=16, ubatch_size=16, kv_unified=True)
    long = "def first(a, b):\n    return a + b\n" * 3
    submit(e, 1, long, Terms(priority=1))
    stepped(e)
    submit(e, 2, "x", n_predict=1)
    events = run(e)
    ends = [each for each in events if isinstance(each, Finished)]
    assert [each.id for each in ends] == [2, 1]
    assert e.stats().n_prompt == n_tokens(e, long) + n_tokens(e, "x") - e.stats().n_prompt_cached
    assert ends[-1].timings.prompt_n + ends[-1].timings.cache_n == n_tokens(e, long)
    assert ends[-1].timings.cache_n <= 1, "its own tokens were not cached before it"


# ---- metering ------------------------------------------------------------------------------


def test_a_metered_request_is_reserved_for_exactly(model: Model) -> None:
    e = engine(model, parallel=2, ctx_size=512)
    n = n_tokens(e)
    assert submit(e, 1, terms=METERED, n_predict=5) == [Accepted(1, n + 5)]
    run(e)
    assert submit(e, 2, terms=METERED, n_predict=-1) == [Accepted(2, 1 + e.scheduler.n_ctx - n)]
    assert submit(e, 3, n_predict=5) == []


def test_little_is_reserved_for_an_answer_without_a_limit(model: Model) -> None:
    """Otherwise a key with a small limit could send no such request."""
    e = engine(model, parallel=1, ctx_size=2 * RESERVED)
    assert submit(e, 1, terms=METERED, n_predict=-1) == [Accepted(1, n_tokens(e) + RESERVED)]


def test_a_request_has_the_weight_and_the_priority_of_its_terms(model: Model) -> None:
    e = engine(model, parallel=1)
    params = GenerationParams(n_predict=1, **GREEDY)
    terms = Terms(weight=2.5, priority=3)
    sequence = e.preparation.prepare(Submit(1, [PROMPT], params, terms=terms)).sequence
    assert (sequence.weight, sequence.priority) == (2.5, 3)


def test_an_allowance_covers_all_texts_of_a_call(model: Model) -> None:
    e = engine(model, parallel=4)
    n = n_tokens(e)
    terms = Terms(is_metered=True, allowance=n + 1 + 2 * 5)
    params = GenerationParams(n_predict=5, **GREEDY)
    call = Submit(1, [PROMPT], params, group=1, others=[(2, 0), (3, 0)], terms=terms)
    events = [e.submit(e.preparation.prepare(each)) for each in apart(call, call.prompt)]
    assert events[:2] == [[Accepted(1, n + 5)], [Accepted(2, 1 + 5)]]
    [failed] = events[2]
    assert isinstance(failed, Failed)
    assert failed.error.type == "rate_limit_error"
    assert len([each for each in run(e) if isinstance(each, Finished)]) == 2


@pytest.mark.parametrize("n_steps", [0, 1, 6])
def test_a_cancelled_metered_request_reports_what_it_has_used(model: Model, n_steps: int) -> None:
    e = engine(model, parallel=1, batch_size=16, ubatch_size=16)
    submit(e, 1, terms=METERED)
    for _ in range(n_steps):
        stepped(e)
    used = e.cancel(1)
    assert used is not None
    n_read = min(16 * n_steps, n_tokens(e))
    assert used.prompt_n == n_read
    assert used.predicted_n == max(0, n_steps * 16 - n_read) // 16 + (n_read == n_tokens(e))
    assert e.cancel(1) is None
    submit(e, 2)
    assert e.cancel(2) is None, "it isn't metered"


# ---- refusals ------------------------------------------------------------------------------


def test_prompt_tokens_that_wait_are_limited(model: Model) -> None:
    n = n_tokens(engine(model), f"1 {PROMPT}")
    e = engine(model, parallel=1, max_queue_tokens=2 * n)
    for id in range(1, 4):
        assert submit(e, id, f"{id} {PROMPT}") == []
        stepped(e)
    [failed] = submit(e, 4, f"4 {PROMPT}")
    assert isinstance(failed, Failed)
    assert failed.error.type == "unavailable_error"
    assert "--max-queue-tokens" in failed.error.message
    assert failed.error.retry_after >= 1
    assert failed.error.estimated_wait_ms is not None
    assert submit(e, 5, f"5 {PROMPT}", Terms(is_accepted=True)) == [], "accepted before"
    assert submit(e, 6, f"6 {PROMPT}", Terms(is_only=True)) == [], "the only one of its key"
    stats = e.stats()
    assert (stats.n_refused, stats.n_deferred) == (1, 4)
    assert stats.n_tokens_waiting > n
    assert stats.wait_seconds > 0
    run(e)
    assert submit(e, 6, f"6 {PROMPT}") == [], "a slot is idle"


def test_calls_that_wait_are_limited(model: Model) -> None:
    e = engine(model, parallel=2, max_queue=2)
    assert [e.refuse_call(n) is None for n in (3, 4)] == [True, False], "two find an idle slot"
    for id in range(1, 4):
        submit(e, id)
    params = GenerationParams(n_predict=5, **GREEDY)
    several = Submit(4, [PROMPT], params, group=4, others=[(5, 0), (6, 0)])
    for each in apart(several, several.prompt):
        assert e.submit(e.preparation.prepare(each)) == []
    stepped(e)
    assert e.refuse_call(0) is not None
    error = e.refuse_call(0)
    assert error is not None
    assert "--max-queue is 2" in error.message


@pytest.mark.parametrize("terms", [Terms(prompt_ms=1), Terms(timeout_ms=1)], ids=str)
def test_a_request_that_would_be_late_is_refused(
    model: Model, terms: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, parallel=1)
    play(e, ["warm"], n_predict=4, **GREEDY)
    for id in range(1, 60):
        submit(e, id, f"{id} {PROMPT}", n_predict=200)
    [failed] = submit(e, 100, terms=terms)
    assert isinstance(failed, Failed)
    assert failed.error.type == "unavailable_error"
    assert failed.error.estimated_wait_ms is not None
    assert failed.error.estimated_wait_ms > 1
    later = Terms(prompt_ms=10_000_000, timeout_ms=10_000_000)
    assert submit(e, 101, terms=later) == []


def test_a_deadline_counts_from_the_arrival(model: Model) -> None:
    e = engine(model, parallel=1)
    message = Submit(1, [PROMPT], GenerationParams(), terms=Terms(prompt_ms=500, timeout_ms=2000))
    request = e.preparation.finish(e.preparation.begin(message, 10.0))
    assert request.deadlines == (10.5, 12.0)
    request.close()


# ---- places --------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time on."""
    ahead, now = 0.0, system.now

    def move(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(system, "now", lambda: now() + ahead)
    return move


def test_places_are_reported_once_a_second_while_a_request_waits(
    model: Model, clock: Callable[[float], None]
) -> None:
    e = engine(model, parallel=1)
    shows = Terms(shows_queue=True)
    submit(e, 1, n_predict=6)
    events: list[Event] = []
    for id in range(2, 5):
        events += submit(e, id, terms=shows, n_predict=6)
    assert [(each.id, each.place) for each in events if isinstance(each, Queued)] == [
        (2, 2),
        (3, 3),
        (4, 4),
    ]
    events = []
    while e.has_work:
        clock(0.25)
        events += stepped(e)
    begun: set[int] = set()
    places: dict[int, list[int]] = {}
    for each in events:
        if isinstance(each, Begun):
            begun.add(each.id)
        if isinstance(each, Queued):
            assert each.id not in begun
            places.setdefault(each.id, []).append(each.place)
    assert places[4] == [3, 2, 1]


def test_reports_of_a_step_are_bounded(model: Model, clock: Callable[[float], None]) -> None:
    e = engine(model, parallel=1)
    for id in range(1, 3 * REPORTS):
        submit(e, id, terms=Terms(shows_queue=True), n_predict=2)
    stepped(e)
    clock(2.0)
    n_reports = []
    for _ in range(3):
        events = [each for each in stepped(e) if isinstance(each, Queued)]
        n_reports.append(len(events))
    assert sum(n_reports) > 0
    assert max(n_reports) <= REPORTS


def test_the_waiting_requests_are_listed(model: Model) -> None:
    e = engine(model, parallel=1)
    submit(e, 1, terms=Terms(key_name="first"))
    stepped(e)
    submit(e, 2, terms=Terms(priority=3, key_name="late"))
    submit(e, 3, terms=Terms(key_name="soon"))
    states, n = e.waiting()
    assert n == 2
    assert [(each.id, each.place, each.key_name, each.priority) for each in states] == [
        (3, 1, "soon", 0),
        (2, 2, "late", 3),
    ]
    assert all(each.age_ms >= 0 and each.wait_ms > 0 for each in states)
    assert states[0].n_tokens == n_tokens(e)
    assert states[0].n_uncached == 1, "the running text has the same prompt"
    [slot] = e.slots()
    assert (slot.key_name, slot.priority) == ("first", 0)
