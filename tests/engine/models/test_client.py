"""Requests that outlive the process that they were sent to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.client import EngineClient
from specllama.engine.params import GenerationParams
from specllama.engine.wire.framing import sender
from specllama.engine.wire.replies import Accepted, Begun, Relaxed, Slots, Step, Text
from specllama.engine.wire.requests import PromptParts
from specllama.engine.wire.stats import Stats
from tests.support.engines import INFO, PaperSupervisor, generate
from tests.support.factories import finished
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow

PARAMS = GenerationParams()
GONE = ErrorInfo("server_error", "it is gone")


class Sink(asyncio.WriteTransport):
    """A pipe to a process; counts the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.n_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.n_bytes += len(data)

    def is_closing(self) -> bool:
        return False


def client() -> EngineClient:
    return EngineClient(sender(Sink()), INFO)


@asynccontextmanager
async def supervised() -> AsyncIterator[PaperSupervisor]:
    supervisor = PaperSupervisor(model_options())
    supervisor.start()
    await begin(supervisor, 1)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def begin(supervisor: PaperSupervisor, n: int) -> None:
    """Process number `n` becomes ready."""
    while supervisor.n_children < n or supervisor._process is None:
        await asyncio.sleep(0)
    supervisor.become_ready()
    while supervisor.awake_engine() is None:
        await asyncio.sleep(0)


def test_running_requests_fail_and_waiting_ones_move_once() -> None:
    async def run() -> None:
        async with supervised() as supervisor:
            engine = await supervisor.engine()
            first, second = (generate(engine, ["a"], PARAMS) for _ in range(2))
            supervisor.say(Step([Begun(first.request.id)]))
            supervisor.crash()
            with pytest.raises(EngineError, match="SIGKILL"):
                await first.result()
            meanwhile = generate(engine, ["sent while there is no process"], PARAMS)
            await begin(supervisor, 2)
            later = generate(engine, ["sent to the old one"], PARAMS)
            ids = {each.request.id for each in (first, second, meanwhile, later)}
            assert len(ids) == 4
            supervisor.say(Step([finished(id=meanwhile.request.id)]))
            assert (await meanwhile.result()).id == meanwhile.request.id
            supervisor.crash()
            with pytest.raises(EngineError, match="SIGKILL"):
                await second.result()
            await begin(supervisor, 3)
            supervisor.say(Step([finished(id=later.request.id)]))
            assert (await later.result()).id == later.request.id

    asyncio.run(run())


def test_questions_fail_with_their_process_and_later_ones_wait_for_the_next() -> None:
    async def run() -> None:
        old, new = client(), client()
        slots = asyncio.create_task(old.slots())
        save = asyncio.create_task(old.slot_action(0, "save", "name"))
        await asyncio.sleep(0)
        old.detach(GONE)
        for asked in (slots, save):
            with pytest.raises(EngineError, match="gone"):
                await asked
        text = asyncio.create_task(old.detokenize([1]))
        await asyncio.sleep(0)
        new.adopt_from(old)
        new.dispatch(Slots(1, []))  # no caller waits for it
        new.dispatch(Text(3, "one"))
        assert await text == "one"
        assert (old.n_running, new.n_running) == (0, 0)

    asyncio.run(run())


def test_status_requests_during_the_end_get_the_last_status() -> None:
    async def run() -> None:
        engine = client()
        looks = asyncio.create_task(engine.slots()), asyncio.create_task(engine.stats())
        text = asyncio.create_task(engine.detokenize([1]))
        await asyncio.sleep(0)
        last = Stats()
        engine.answer_from_snapshot(last, [])
        engine.close(GONE)
        assert [await look for look in looks] == [[], last]
        with pytest.raises(EngineError, match="gone"):
            await text

    asyncio.run(run())


def test_a_confirmed_request_is_not_confirmed_again() -> None:
    async def run() -> None:
        old, new = client(), client()
        generation = generate(old, ["a"], PARAMS, confirm=True)
        old.dispatch(Step([Accepted(1)]))
        await generation.accepted()
        old.detach(GONE)
        new.adopt_from(old)
        assert not generation.request.confirm
        new.dispatch(Step([Begun(1), finished(id=1)]))
        assert (await generation.result()).id == 1

    asyncio.run(run())


def test_the_next_process_reports_ignored_keywords() -> None:
    async def run() -> None:
        old, new = client(), client()
        generation = generate(old, ["a"], PARAMS)
        old.dispatch(Step([Relaxed(1, ["#/not"])]))
        old.detach(GONE)
        new.adopt_from(old)
        new.dispatch(Step([Begun(1), finished(id=1)]))
        await generation.result()
        assert generation.relaxed == []

    asyncio.run(run())


def test_a_request_that_is_cancelled_between_two_processes_is_not_sent_again() -> None:
    async def run() -> None:
        old = client()
        generation = generate(old, ["a"], PARAMS)
        old.detach(GONE)
        question = asyncio.create_task(old.slots())
        await asyncio.sleep(0)
        generation.cancel()
        question.cancel()
        await asyncio.wait({question})
        sink = Sink()
        new = EngineClient(sender(sink), INFO)
        new.adopt_from(old)
        await asyncio.sleep(0)
        assert (sink.n_bytes, new.n_running) == (0, 0)

    asyncio.run(run())


def test_a_request_that_has_moved_is_cancelled_where_it_is() -> None:
    async def run() -> None:
        old = client()
        generation = generate(old, ["a"], PARAMS)
        old.detach(GONE)
        sink = Sink()
        new = EngineClient(sender(sink), INFO)
        new.adopt_from(old)
        await asyncio.sleep(0)
        sent = sink.n_bytes
        generation.cancel()
        await asyncio.sleep(0)
        assert sent < sink.n_bytes
        assert new.n_running == 0

    asyncio.run(run())


@pytest.mark.parametrize("end", ["late", "failed", "stopped"])
def test_without_another_process_the_wait_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end == "late":
        monkeypatch.setattr("specllama.engine.models.supervisor.RESTART_WAIT", 0.0)

    async def run() -> None:
        async with supervised() as supervisor:
            generation = generate(await supervisor.engine(), ["a"], PARAMS)
            supervisor.crash()
            if end == "failed":
                while supervisor.n_children < 2 or supervisor._process is None:
                    await asyncio.sleep(0)
                supervisor.fail("no such file")
            elif end == "stopped":
                while supervisor.state != "restarting":
                    await asyncio.sleep(0)
                await supervisor.stop()
            with pytest.raises(EngineError) as error:
                await generation.result()
            assert error.value.info.type == "unavailable_error"
            assert bool(error.value.info.retry_after) == (end == "late")

    asyncio.run(run())


def test_a_prompt_of_many_texts_is_sent_once_to_each_process() -> None:
    prompt: PromptParts = ["x" * 1_000_000]
    variants = [GenerationParams(seed=seed) for seed in range(500)]

    async def run() -> None:
        sink, later = Sink(), Sink()
        old, new = EngineClient(sender(sink), INFO), EngineClient(sender(later), INFO)
        texts = old.generate_all(prompt, variants)
        assert [each.request.params.seed for each in texts] == list(range(500))
        await asyncio.sleep(0)
        texts[0].cancel()
        texts[7].cancel()
        await asyncio.sleep(0)
        old.detach(GONE)
        new.adopt_from(old)
        await asyncio.sleep(0)
        for pipe in (sink, later):
            assert 1_000_000 < pipe.n_bytes < 1_100_000
        for each in texts[1:7]:
            new.dispatch(Step([finished(id=each.request.id)]))
            assert (await each.result()).id == each.request.id

    asyncio.run(run())
