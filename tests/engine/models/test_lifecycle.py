"""The table of states, and random histories of a supervisor over it.

The histories run the real supervisor, client and process record over a child that exists in name
only: whatever it does and whenever, there is no transition outside of the table, and each request
ends exactly once.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models import lifecycle
from specllama.engine.models.events import ModelStatus
from specllama.engine.models.generation import Generation
from specllama.engine.models.lifecycle import STATES, TRANSITIONS, Lifecycle, State, TransitionError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Begun, Delta, Failed, Finished, Step, Timings
from tests.support.engines import PaperSupervisor, generate
from tests.support.options_support import model_options
from tests.support.pool_stage import soon

pytestmark = pytest.mark.slow

# ---- the table -------------------------------------------------------------------------------


def reachable(start: State) -> set[State]:
    found, new = {start}, [start]
    while new:
        new = [state for state in TRANSITIONS[new.pop()] if state not in found] + new
        found.update(new)
    return found


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(STATES) == set(get_args(State))
    assert set().union(*map(reachable, lifecycle.INITIAL)) == set(STATES)


def test_every_state_can_be_stopped_and_only_stopped_is_final() -> None:
    for state in STATES:
        assert ("stopped" in TRANSITIONS[state]) == (state != "stopped")
        assert bool(TRANSITIONS[state]) == (state != "stopped")


def test_an_engine_that_serves_is_loaded_for_clients() -> None:
    supervisor = PaperSupervisor(model_options())
    for state in STATES:
        supervisor._lifecycle = Lifecycle(state)
        value = ModelStatus.of(supervisor).value
        assert (value == "loaded") == (state in lifecycle.SERVING or state == "dozing")
        assert (value == "loading") == (state in lifecycle.LOADING)


@given(st.sampled_from(sorted(lifecycle.INITIAL)), st.lists(st.sampled_from(STATES), max_size=30))
def test_no_sequence_of_transitions_leaves_the_table(start: State, wanted: list[State]) -> None:
    machine = Lifecycle(start)
    for state in wanted:
        before = machine.state
        if before == "stopped":
            assert not machine.enter(state)
            assert machine.state == "stopped"
        elif state in TRANSITIONS[before]:
            assert machine.enter(state)
            assert machine.state == state
        else:
            with pytest.raises(TransitionError, match=f"is {before} can't become {state}"):
                machine.enter(state)
            assert machine.state == before


# ---- histories -------------------------------------------------------------------------------

BEGINNINGS = ("ready", "ready", "loading", "downloading")
TIMINGS = Timings(0, 1, 0.0, 1, 0.0)
PARAMS = GenerationParams(stream=True)
ENDED = ErrorInfo("server_error", "the engine said so")


def delta(id: int) -> Delta:
    return Delta(id, "text", [1], 0, TIMINGS)


def begun(id: int) -> Begun:
    return Begun(id)


def finished(id: int) -> Finished:
    return Finished(
        id=id,
        text="",
        tokens=[],
        stop_type="limit",
        stopping_word="",
        truncated=False,
        has_new_line=False,
        id_slot=0,
        prompt="",
        n_prompt=1,
        n_decoded=1,
        timings=TIMINGS,
        params=PARAMS,
    )


EVENTS = st.sampled_from([begun, delta, finished, lambda id: Failed(id, ENDED)])


class Request:
    """One request, from its lease to its end, and the ends that it has seen."""

    def __init__(self, supervisor: PaperSupervisor) -> None:
        self.ends: list[str] = []
        self.generation: Generation | None = None
        self.task = asyncio.create_task(self._run(supervisor))

    async def _run(self, supervisor: PaperSupervisor) -> None:
        try:
            supervisor.acquire()
        except EngineError:
            self.ends.append("refused")
            return
        try:
            engine = await supervisor.engine()
            self.generation = generate(engine, ["a"], PARAMS)
            async for event in self.generation:
                if isinstance(event, Finished):
                    self.ends.append("finished")
        except EngineError:
            self.ends.append("failed")
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            if self.generation is not None:
                self.generation.cancel()
        finally:
            supervisor.release()


class Histories(RuleBasedStateMachine):
    """Everything that can happen to a supervisor, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.errors: list[dict[str, Any]] = []
        self.transitions: list[tuple[State, State]] = []
        self.requests: list[Request] = []
        self.work: list[asyncio.Task[None]] = []  # that must not fail
        self.age = 0  # rules so far

    def run(self, work: Coroutine[Any, Any, Any] | None = None, *, settle: bool = True) -> None:
        async def both() -> None:
            if work is not None:
                await work
            if settle:
                await soon()
            else:
                await asyncio.sleep(0)

        self.runner.run(both())

    @property
    def state(self) -> State:
        return self.supervisor.state

    @property
    def talks(self) -> bool:
        return self.supervisor.alive

    @property
    def loads(self) -> bool:
        process = self.supervisor._process
        return self.talks and process is not None and process.client is None

    @property
    def is_old(self) -> bool:
        """Ends a history early."""
        return self.age > 12

    @initialize(begin=st.sampled_from(BEGINNINGS), load=st.booleans())
    def begin(self, begin: str, load: bool) -> None:
        async def start() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: self.errors.append(context))
            self.supervisor.start(load=load)

        repo = "user/repo" if begin == "downloading" else ""
        self.supervisor = PaperSupervisor(model_options(hf_repo=repo))
        self.supervisor.on_transition = lambda before: self.transitions.append((before, self.state))
        self.transitions.append((self.state, self.state))
        self.run(start())
        if begin == "ready":
            self.becomes_ready(settle=True)

    @rule(settle=st.booleans())
    def ask(self, settle: bool) -> None:
        async def ask() -> None:
            self.requests.append(Request(self.supervisor))

        self.run(ask(), settle=settle)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.requests)).task.cancel()
        self.run()

    @precondition(lambda self: self.talks and not self.loads and self.requests)
    @rule(data=st.data(), event=EVENTS, settle=st.booleans())
    def engine_answers(self, data: st.DataObject, event: Any, settle: bool) -> None:
        """Also requests that are over, or that another process had."""
        client = self.supervisor._process and self.supervisor._process.client
        running = sorted(client._generations) if client else []
        id = data.draw(st.sampled_from([*running, 1, len(self.requests)]))

        generation = client and client._generations.get(id)
        if event is begun and generation and generation.has_begun:
            event = delta  # nothing begins twice

        async def answer() -> None:
            self.supervisor.say(Step([event(id)]))

        self.run(answer(), settle=settle)

    @precondition(lambda self: self.loads)
    @rule(settle=st.booleans())
    def becomes_ready(self, settle: bool) -> None:
        async def become_ready() -> None:
            self.supervisor.become_ready()

        self.run(become_ready(), settle=settle)

    @precondition(lambda self: self.loads)
    @rule(fraction=st.floats(0, 1))
    def progresses(self, fraction: float) -> None:
        self.supervisor.make_progress(fraction)

    @precondition(lambda self: self.loads and (self.state != "loading" or self.is_old))
    @rule(settle=st.booleans())
    def refuses_the_model(self, settle: bool) -> None:
        self.supervisor.fail("no such file")
        self.run(settle=settle)

    @precondition(lambda self: self.talks and (self.state != "loading" or self.is_old))
    @rule(code=st.sampled_from([0, 1, -4, -9]), settle=st.booleans())
    def crashes(self, code: int, settle: bool) -> None:
        self.supervisor.crash(code)
        self.run(settle=settle)

    @precondition(lambda self: self.supervisor._process is not None)
    @rule(settle=st.booleans())
    def is_idle(self, settle: bool) -> None:
        process = self.supervisor._process
        assert process is not None

        async def doze() -> None:
            self.work.append(asyncio.create_task(self.supervisor._doze(process)))

        self.run(doze(), settle=settle)

    @rule()
    def wake(self) -> None:
        self.supervisor.wake()
        self.run()

    @precondition(lambda self: self.state == "downloading")
    @rule(ok=st.booleans(), settle=st.booleans())
    def download_ends(self, ok: bool, settle: bool) -> None:
        if ok:
            self.supervisor.download(1, 2)
            self.supervisor.downloaded()
        else:
            self.supervisor.fail_download("no such repository")
        self.run(settle=settle)

    @precondition(lambda self: self.is_old and self.state in lifecycle.SERVING)
    @rule(settle=st.booleans())
    def drain(self, settle: bool) -> None:
        self._stop(1000.0, settle)

    @precondition(lambda self: self.is_old)
    @rule(settle=st.booleans())
    def stop(self, settle: bool) -> None:
        self._stop(0.0, settle)

    def _stop(self, timeout: float, settle: bool) -> None:
        async def stop() -> None:
            self.work.append(asyncio.create_task(self.supervisor.stop(timeout)))

        self.run(stop(), settle=settle)

    @invariant()
    def grow_older(self) -> None:
        self.age += 1

    @invariant()
    def transitions_are_of_the_table(self) -> None:
        assert not self.errors
        assert "TransitionError" not in self.supervisor.failure
        (_, at), *rest = self.transitions
        for before, after in rest:
            assert before == at
            assert after in TRANSITIONS[before]
            at = after
        assert at == self.state

    @invariant()
    def an_engine_is_there_when_the_state_says_so(self) -> None:
        engine = self.supervisor.awake_engine()
        assert (engine is not None) == (self.state in lifecycle.SERVING)

    @invariant()
    def no_request_ends_twice(self) -> None:
        for request in self.requests:
            assert len(request.ends) <= 1
            if request.ends and request.generation is not None:
                unread = request.generation._events
                if request.ends == ["cancelled"]:  # its end may have come in that moment
                    assert sum(not isinstance(event, Delta) for event in unread) <= 1
                else:
                    assert not unread, "an event after the end"

    def teardown(self) -> None:
        if not hasattr(self, "supervisor"):
            self.runner.close()
            return
        self.run(self.supervisor.stop())
        self.run()
        assert self.state == "stopped"
        assert not self.supervisor.alive
        assert self.supervisor.n_leases == 0
        for request in self.requests:
            assert request.task.done()
            assert len(request.ends) == 1 or request.task.cancelled()
        assert all(task.done() and task.exception() is None for task in self.work)
        self.transitions_are_of_the_table()
        self.no_request_ends_twice()
        self.runner.close()
        assert not self.errors


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_histories = Histories.TestCase
