"""Texts that end at a deadline, on the shipped model; a test decides when an hour has passed."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine import system
from specllama.engine.params import GenerationParams
from specllama.engine.wire.link import Link
from specllama.engine.wire.replies import (
    Accepted,
    Begun,
    Delta,
    Event,
    Failed,
    Finished,
    Step,
    ToServer,
)
from specllama.engine.wire.requests import Submit, Terms, ToEngine, to_engine_decoder
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import CompileOrder
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.scheduling.limits import NEVER, Deadlines
from specllama.engine.worker.worker import Worker
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders"), pytest.mark.covering(1)]

HOUR = 3_600_000  # ms
TOTAL, PROMPT = Terms(timeout_ms=HOUR), Terms(prompt_ms=HOUR)
LONG = "for item in items: yield item\n" * 20


class Clock:
    """The real clock, which a test puts forward."""

    def __init__(self) -> None:
        self._now = system.now
        self._ahead = 0.0

    def now(self) -> float:
        return self._now() + self._ahead

    def pass_hours(self, n: int = 2) -> None:
        self._ahead += n * HOUR / 1e3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(system, "now", clock.now)
    return clock


def submit(engine: Engine, id: int, prompt: str, terms: Terms, **params: Any) -> list[Event]:
    given = GenerationParams(**{**GREEDY, "n_predict": 100, **params})
    confirm = given.stream
    request = engine.preparation.prepare(Submit(id, [prompt], given, confirm=confirm, terms=terms))
    return engine.submit(request)


def rest(engine: Engine) -> dict[int, Finished]:
    """Runs the engine to its end. Returns the results by id."""
    found: dict[int, Finished] = {}
    while engine.has_work:
        found |= {event.id: event for event in stepped(engine) if isinstance(event, Finished)}
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n_steps", [1, 7])
def test_a_text_is_what_it_was_at_its_deadline(
    model: Model, clock: Clock, n_steps: int, stream: bool
) -> None:
    e = engine(model)
    events = submit(e, 1, "import os", TOTAL, stream=stream, stop=["an unlikely text"])
    for _ in range(n_steps):
        events += stepped(e)
    clock.pass_hours()
    events += stepped(e)
    assert not e.has_work
    assert e.next_deadline == NEVER
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.stop_type, finished.deadline) == ("limit", "total")
    n = finished.n_decoded
    assert n >= n_steps
    wanted = play(engine(model), ["import os"], n_predict=n, **GREEDY)["import os"]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(each.text for each in deltas) + finished.text == wanted.text
    assert [t for each in deltas for t in each.tokens] + finished.tokens == wanted.tokens
    assert finished.timings.prompt_n == wanted.timings.prompt_n
    again = play(e, ["import os"], n_predict=n, **GREEDY)["import os"]
    assert again.tokens == wanted.tokens, "what the text leaves in the cache is right"
    assert again.timings.cache_n == again.n_prompt - 1


@pytest.mark.parametrize("terms", [TOTAL, PROMPT])
def test_a_text_that_ends_in_its_prompt_is_empty(model: Model, clock: Clock, terms: Terms) -> None:
    e = engine(model, batch_size=16, ubatch_size=16)
    events = submit(e, 1, LONG, terms)
    events += stepped(e) + stepped(e)
    clock.pass_hours()
    events += stepped(e)
    begun, finished = events
    assert isinstance(begun, Begun)
    assert isinstance(finished, Finished)
    assert (finished.text, finished.tokens, finished.stop_type) == ("", [], "limit")
    assert finished.deadline == ("total" if terms is TOTAL else "prompt")
    timings = finished.timings
    assert (timings.prompt_n, timings.predicted_n) == (32, 0), "only what was evaluated"
    assert finished.n_prompt > 32
    again = play(e, [LONG], n_predict=3, **GREEDY)[LONG]
    assert again.timings.cache_n == 32, "the beginning of the prompt stays in the cache"
    assert again.tokens == play(engine(model), [LONG], n_predict=3, **GREEDY)[LONG].tokens


def test_the_deadline_of_a_prompt_does_not_end_its_text(model: Model, clock: Clock) -> None:
    e = engine(model)
    submit(e, 1, "import os", PROMPT, n_predict=20)
    stepped(e)
    clock.pass_hours()
    finished = rest(e)[1]
    assert (finished.n_decoded, finished.deadline) == (20, "")
    assert e.next_deadline == NEVER


@pytest.mark.parametrize("terms", [TOTAL, PROMPT])
def test_who_waits_for_a_slot_ends_without_one(model: Model, clock: Clock, terms: Terms) -> None:
    e = engine(model, parallel=1)
    submit(e, 1, "import os", Terms(), n_predict=12)
    first = submit(e, 2, "import sys", terms, stream=True)
    stepped(e)
    clock.pass_hours()
    events = stepped(e)
    begun, finished = [event for event in events if event.id == 2]
    assert first == [Accepted(2)]
    assert begun == Begun(2)
    assert isinstance(finished, Finished)
    assert (finished.deadline != "", finished.id_slot, finished.timings.prompt_n) == (True, -1, 0)
    assert e.scheduler.n_waiting == 0
    alone = play(engine(model), ["import os"], n_predict=12, **GREEDY)["import os"]
    assert rest(e)[1].tokens == alone.tokens, "another text goes on"


def test_who_is_paused_ends(model: Model, clock: Clock) -> None:
    e = engine(model)
    submit(e, 1, "import os", TOTAL)
    for _ in range(5):
        stepped(e)
    e.pause(1)
    assert not e.has_work
    clock.pass_hours()
    assert e.has_work, "although no sequence can advance"
    finished = rest(e)[1]
    assert finished.deadline == "total"
    assert finished.n_decoded >= 4
    assert e.scheduler.n_paused == 0
    e.resume(1)
    assert not e.has_work


def test_a_text_that_ends_in_time_is_not_late(model: Model, clock: Clock) -> None:
    e = engine(model)
    submit(e, 1, "import os", TOTAL, n_predict=3)
    assert rest(e)[1].deadline == ""
    assert e.next_deadline < NEVER, "it is found out when it passes"
    clock.pass_hours()
    assert e.has_work
    assert stepped(e) == []
    assert (e.has_work, e.next_deadline) == (False, NEVER)


def test_only_what_is_overdue_ends(model: Model, clock: Clock) -> None:
    e = engine(model, parallel=3)
    submit(e, 1, "import os", TOTAL)
    submit(e, 2, "import sys", Terms(timeout_ms=5 * HOUR))
    submit(e, 3, "import re", Terms(), n_predict=40)
    stepped(e)
    clock.pass_hours()
    ended = [event.id for event in stepped(e) if isinstance(event, Finished)]
    assert ended == [1]
    clock.pass_hours(4)
    found = rest(e)
    assert {id: each.deadline for id, each in found.items()} == {2: "total", 3: ""}


# ---- the worker's loop -------------------------------------------------------------------


class Said(Link[ToEngine, ToServer]):
    """Records the sent events, and calls `on_send` after each message."""

    def __init__(self) -> None:
        super().__init__(lambda n: b"", len, to_engine_decoder)
        self.events: list[Any] = []
        self.on_send: Callable[[], None] = lambda: None

    def send(self, *messages: ToServer) -> None:
        for message in messages:
            self.events += message.events if isinstance(message, Step) else [message]
        self.on_send()


def test_an_idle_loop_wakes_up_for_a_deadline(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused request is all there is, and no message arrives."""
    said = Said()
    e = engine(model)
    one = Worker(e, said, engine_options())
    monkeypatch.setattr(system, "start_thread", lambda run, name: None)
    submit(e, 1, "import os", Terms(timeout_ms=1))
    e.pause(1)
    said.on_send = lambda: one._inbox.put(None)
    one.run()
    [begun, finished] = said.events
    assert begun == Begun(1)
    assert finished.deadline == "total"


def test_a_request_ends_while_its_grammar_is_compiled(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    e = engine(model)
    one = Worker(e, said, engine_options())
    monkeypatch.setattr(system, "start_thread", lambda run, name: None)
    monkeypatch.setattr(CompileOrder, "is_ready", False)
    continued: list[Callable[[], None]] = []
    monkeypatch.setattr(CompileOrder, "when_ready", lambda order, then: continued.append(then))
    monkeypatch.setattr(one._lanes, "start", lambda id, size, work: work())
    params = GenerationParams(grammar='root ::= "a"', n_predict=4)
    one._take(Submit(1, ["import os"], params, confirm=True, terms=Terms(prompt_ms=1)))
    said.on_send = lambda: one._inbox.put(None)
    one.run()
    accepted, begun, finished = said.events
    assert (accepted, begun) == (Accepted(1), Begun(1))
    assert (finished.deadline, finished.stop_type, finished.text) == ("prompt", "limit", "")
    assert finished.n_prompt > 0
    monkeypatch.undo()
    said.events.clear()
    said.on_send = lambda: None
    monkeypatch.setattr(one._lanes, "start", lambda id, size, work: work())
    continued[0]()  # the compilation ends, too late
    while not one._inbox.empty():
        message = one._inbox.get()
        assert message is not None
        one._handle(message)
    assert said.events == [], "a request ends once"
    assert not one._arriving
    assert not e.has_work


def test_the_time_in_the_queue_of_the_preparation_counts(model: Model, clock: Clock) -> None:
    e = engine(model)
    e.sweep(lambda: False)  # without known times, no request is refused for its deadline
    said = Said()
    one = Worker(e, said, engine_options())
    one._arriving.add([1], 0, is_metered=False)
    clock.pass_hours()
    one._prepare(Submit(1, ["import os"], GenerationParams(), terms=TOTAL))
    message = one._inbox.get()
    assert message is not None
    one._handle(message)
    [failed] = said.events
    assert isinstance(failed, Failed)
    assert failed.error.type == "unavailable_error"
    assert not e.has_work


# ---- the times ---------------------------------------------------------------------------


milliseconds = st.integers(-5, 10_000)
times = st.floats(0, 1e6, allow_nan=False)


@settings(max_examples=200)
@given(milliseconds, milliseconds, times, times, st.booleans())
def test_a_deadline_passes_at_its_time(
    prompt: int, total: int, arrived: float, now: float, in_prompt: bool
) -> None:
    deadlines = Deadlines.of(Terms(prompt_ms=prompt, timeout_ms=total), arrived)
    passed = deadlines.passed(now, in_prompt=in_prompt)
    late_total = total > 0 and now >= arrived + total / 1e3
    late_prompt = in_prompt and prompt > 0 and now >= arrived + prompt / 1e3
    if math.isclose(now, deadlines.total) or math.isclose(now, deadlines.prompt):
        return  # rounding decides
    assert passed == ("total" if late_total else "prompt" if late_prompt else "")
    assert bool(passed) == (now >= deadlines.following(in_prompt=in_prompt))
    assert deadlines.first <= deadlines.following(in_prompt=in_prompt)
