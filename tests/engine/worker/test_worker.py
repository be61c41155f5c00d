"""The worker's loop around an engine, without processes and pipes."""

import os
import threading
from collections.abc import Callable

import pytest

from specllama.engine import system
from specllama.engine.params import GenerationParams
from specllama.engine.wire.link import Link
from specllama.engine.wire.replies import Accepted, Ended, Event, Failed, Step, ToServer, Vectors
from specllama.engine.wire.requests import Cancel, Submit, Terms, ToEngine, to_engine_decoder
from specllama.engine.worker.backend import Model
from specllama.engine.worker.backend.watch import stepping
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.preparation_queue import LONG, LONG_THREADS
from specllama.engine.worker.tokens import TokenArray
from specllama.engine.worker.worker import Worker
from tests.support.options_support import engine_options
from tests.support.playing import engine, play, stepped
from tests.support.watching import without_limits

PATIENT = 3600.0
"""Seconds that no test takes: a longer wait would be for a message that never arrives."""


@pytest.fixture
def served(model: Model) -> Engine:
    """An engine with a known cost of prompts."""
    found = engine(model, parallel=4)
    play(found, ["def function(self, value):"], n_predict=2)
    return found


def prepared(engine: Engine, id: int) -> Request:
    params = GenerationParams(n_predict=4, ignore_eos=True)
    return engine.preparation.prepare(Submit(id, [f"import module_{id}"], params))


def worker(engine: Engine) -> Worker:
    return Worker(engine, Link.of_files(-1, -1, to_engine_decoder), engine_options())


def test_who_comes_with_others_waits_for_them(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.engine.worker.worker.GATHER_SECONDS", PATIENT)
    monkeypatch.setattr("specllama.engine.worker.generation.engine.GATHER_SHARE", 1e9)
    one = worker(served)
    for id in (2, 3):
        one._arriving.add([id], id, is_metered=False)
    served.submit(prepared(served, 1))
    for id in (2, 3):
        one._inbox.put(prepared(served, id))
    assert one._gather()
    assert served.scheduler.n_waiting == 3
    stepped(served)
    assert len(served.scheduler.active) == 3


def test_the_end_comes_while_others_are_waited_for(served: Engine) -> None:
    one = worker(served)
    one._arriving.add([2], 2, is_metered=False)
    served.submit(prepared(served, 1))
    one._inbox.put(None)
    assert not one._gather()


def test_a_step_waits_only_for_requests_in_preparation(served: Engine) -> None:
    one = worker(served)
    served.submit(prepared(served, 1))
    assert one._gather(), "no request is being prepared"
    assert served.gather_seconds > 0
    stepped(served)
    assert served.scheduler.n_generating == 1
    assert served.gather_seconds == 0
    one._arriving.add([2], 2, is_metered=False)
    served.submit(prepared(served, 3))
    assert served.gather_seconds == 0
    assert one._gather(), "requests that have not arrived are not waited for"


def test_steps_follow_each_other_until_the_thread_has_other_work(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(served)
    assert one._may_go_on()
    one._inbox.put(Cancel(1))
    assert not one._may_go_on(), "a message has arrived"
    one._inbox.get()
    with monkeypatch.context() as patched:
        patched.setattr(type(one._slot_actions), "pending", True)
        assert not one._may_go_on(), "an action on a slot waits"
    with monkeypatch.context() as patched:
        patched.setattr(one._arriving, "next_deadline", system.now())
        assert not one._may_go_on(), "the deadline of a request has passed"
    assert one._may_go_on()


def test_the_thread_that_steps_is_watched_unless_it_waits(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch, stepping)
    reports: list[str | None] = []

    def step(send: object, may_go_on: object) -> None:
        reports.append(stepping.look(1.0))
        one._inbox.put(None)

    one = worker(served)
    monkeypatch.setattr(system, "start_thread", lambda run, name: None)
    monkeypatch.setattr(served, "step", step)
    served.submit(prepared(served, 1))
    one.run()
    assert reports == ["a step has not ended for 1 s (the limit is 0 s)"]
    assert stepping.look(1.0) is None


@pytest.mark.parametrize("arrives", ["a request", "a request in preparation", "the end", "nothing"])
def test_steps_are_measured_until_there_is_something_else_to_do(
    arrives: str, served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.engine.worker.worker.QUIET_SECONDS", 0.0)
    one = worker(served)
    stopped: list[bool] = []

    def sweep(stop: Callable[[], bool]) -> None:
        stopped.append(stop())
        if arrives == "a request":
            one._inbox.put(prepared(served, 1))
        elif arrives == "a request in preparation":
            one._arriving.add([1], 1, is_metered=False)
        elif arrives == "the end":
            one._inbox.put(None)
        stopped.extend([stop(), stop()])

    monkeypatch.setattr(served, "is_sweeping", lambda: True)
    monkeypatch.setattr(served, "sweep", sweep)
    one._sweep()
    assert one._inbox.empty() is (arrives != "the end"), "the end is also the end of `run`"
    assert stopped == [False, *[arrives != "nothing"] * 2]
    assert served.has_work is (arrives == "a request")


class Said(Link[ToEngine, ToServer]):
    """Records sent messages."""

    def __init__(self) -> None:
        super().__init__(lambda n: b"", len, to_engine_decoder)
        self.failed: list[int] = []
        self.events: list[Event | Vectors] = []

    def send(self, *messages: ToServer) -> None:
        for message in messages:
            if isinstance(message, Failed):
                self.events.append(message)
                continue
            assert isinstance(message, Step)
            self.events += message.events
            self.failed += [event.id for event in message.events if isinstance(event, Failed)]


def deferred(one: Worker, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Records the preparations of `one` instead of starting them."""
    works: list[Callable[[], None]] = []
    monkeypatch.setattr(one._lanes, "start", lambda id, size, work: works.append(work))
    return works


def many(prompt: str) -> Submit:
    params = GenerationParams(n_predict=4, seed=1, id_slot=2)
    return Submit(1, [prompt], params, group=1, others=[(2, 7), (4, 8), (5, 9)])


def test_a_prompt_of_many_texts_is_tokenized_once(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    tokenize = Model.tokenize

    def counted(self: Model, text: bytes, **options: bool) -> TokenArray:
        asked.append(text)
        return tokenize(self, text, **options)

    monkeypatch.setattr(Model, "tokenize", counted)
    one = worker(served)
    works = deferred(one, monkeypatch)
    assert one._take(many("def f(self, x):")) is None
    one._handle(Cancel(4))
    while works:
        works.pop(0)()
    found = [one._inbox.get() for _ in range(3)]
    assert asked == [b"def f(self, x):"]
    assert [
        (each.id, each.params.seed, each.params.id_slot)
        for each in found
        if isinstance(each, Request)
    ] == [
        (1, 1, 2),
        (2, 7, -1),
        (5, 9, -1),
    ]
    assert [id for id in range(9) if one._arriving.get(id) is not None] == [1, 2, 5]


def test_a_prompt_too_long_for_many_texts_is_an_error_of_each(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    one = Worker(served, said, engine_options())
    works = deferred(one, monkeypatch)
    one._take(many("word " * 10_000))
    one._handle(Cancel(4))
    for work in works:
        work()
    assert said.failed == [1, 2, 4, 5]
    assert not one._arriving
    assert one._inbox.empty()


def test_long_texts_delay_no_other_and_are_dropped_if_cancelled(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are threads take for ever; one more waits."""
    go_on, running, ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    tokenize, tokenized = Model.tokenize, []

    def slowly(model: Model, text: bytes, **how: bool) -> TokenArray:
        tokenized.append(text)
        if len(text) < LONG:
            return tokenize(model, text, **how)
        running.release()
        go_on.wait()
        tokens = tokenize(model, text, **how)
        ended.release()
        return tokens

    monkeypatch.setattr(Model, "tokenize", slowly)
    one = Worker(
        served,
        Link.of_files(-1, os.open(os.devnull, os.O_WRONLY), to_engine_decoder),
        engine_options(),
    )
    params = GenerationParams(n_predict=1)
    for id in range(LONG_THREADS):
        one._take(Submit(id, [f"{id}" * LONG], params))
        running.acquire()
    one._take(Submit(10, ["x" * LONG], params))
    one._take(Submit(11, ["short"], params))
    request = one._inbox.get()
    assert isinstance(request, Request)
    assert request.id == 11
    one._handle(Cancel(10))
    assert one._arriving.get(10) is None
    go_on.set()
    done = threading.Event()
    one._lanes.start(12, LONG, done.set)
    done.wait()
    for _ in range(LONG_THREADS):  # the model must not be closed under a thread that uses it
        ended.acquire()
    assert b"x" * LONG not in tokenized


METERED = Terms(is_metered=True)


def test_a_metered_request_ends_once_wherever_it_is_cancelled(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its preparation, during it, while it waits, and while it runs."""
    said = Said()
    one = Worker(served, said, engine_options())
    works = deferred(one, monkeypatch)
    params = GenerationParams(n_predict=9, ignore_eos=True)
    for id in range(1, 8):
        one._take(Submit(id, [f"import module_{id}"], params, group=id, terms=METERED))
    one._handle(Cancel(1))
    for work in works:
        work()
    while not one._inbox.empty():
        request = one._inbox.get()
        assert isinstance(request, Request)
        one._handle(request)
        if request.id == 2:
            one._handle(Cancel(2))
    one._step()
    assert served.scheduler.n_waiting == 1
    for id in (3, 7):
        one._handle(Cancel(id))
    while served.has_work:
        one._step()
    for id in range(1, 8):
        one._handle(Cancel(id))
    assert [each.id for each in said.events if isinstance(each, Accepted)] == [2, 3, 4, 5, 6, 7]
    ended = {each.id: each.timings for each in said.events if isinstance(each, Ended)}
    assert [*ended] == [1, 2, 3, 7]
    assert [ended[id].prompt_n > 0 for id in ended] == [False, False, True, False]


def test_a_metered_request_that_fails_after_its_cancellation_has_one_end(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    one = Worker(served, said, engine_options())
    works = deferred(one, monkeypatch)
    one._take(Submit(1, ["word " * 10_000], GenerationParams(), terms=METERED))
    one._handle(Cancel(1))
    for work in works:
        work()
    assert [type(each) for each in said.events] == [Ended]


def test_calls_are_refused_before_they_are_tokenized(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    served = engine(model, parallel=1, max_queue=2)
    one = Worker(served, said, engine_options())
    works = deferred(one, monkeypatch)
    params = GenerationParams(n_predict=4)
    replies = [one._take(Submit(id, ["a"], params, group=id)) for id in range(1, 4)]
    assert replies == [None] * 3, "one finds a slot, two may wait"
    reply = one._take(Submit(4, ["b"], params, group=4, others=[(5, 1)]))
    assert isinstance(reply, Step)
    assert [each.id for each in reply.events if isinstance(each, Failed)] == [4, 5]
    assert len(works) == 3
    assert one._take(Submit(6, ["a"], params, group=3)) is None, "its call waits already"
    again = Submit(7, ["a"], params, group=7, terms=Terms(is_accepted=True))
    assert one._take(again) is None, "an earlier process has accepted it"
    only = Submit(8, ["a"], params, group=8, terms=Terms(is_only=True))
    assert one._take(only) is None, "its key has no other call"
