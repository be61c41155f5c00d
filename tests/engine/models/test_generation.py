"""The events of a generation on their way to their reader."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.models import generation as generation_module
from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.params import GenerationParams
from specllama.engine.wire.framing import frame, sender
from specllama.engine.wire.replies import Delta, Event, Finished, Step, TokenProbs
from specllama.engine.wire.requests import Cancel, Pause, Resume
from tests.support.engines import generate
from tests.support.factories import TIMINGS, finished, model_info

MANY = generation_module.MAX_WAITING


class Sink(asyncio.WriteTransport):
    """Records written messages."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def is_closing(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "GRACE", 0.0)
    monkeypatch.setattr(generation_module, "PAUSE_GRACE", 0.0)


def delta(id: int, n_probs: int = 0) -> Delta:
    probs = [TokenProbs(1, b"a", 0.0, [(1, b"a", 0.0)] * n_probs)] if n_probs else []
    return Delta(id, "a", [1], 0, TIMINGS, probs)


def run(test: Callable[[EngineClient, Sink, Generation], Awaitable[None]]) -> None:
    async def with_loop() -> None:
        sink = Sink()
        client = EngineClient(sender(sink), model_info())
        await test(client, sink, generate(client, ["a"], GenerationParams(stream=True)))
        await asyncio.sleep(0)

    asyncio.run(with_loop())


async def come(client: EngineClient, *events: Event) -> None:
    """The events come, and what then happens by itself has happened."""
    client.dispatch(Step(list(events)))
    for _ in range(5):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("n_probs", [0, 1023])
def test_an_unread_generation_is_ended(n_probs: int) -> None:
    async def test(client: EngineClient, sink: Sink, generation: Generation) -> None:
        n = MANY // (n_probs + 1)
        await come(client, *[delta(1, n_probs)] * n)
        assert client.n_running == 1
        await come(client, delta(1, n_probs), delta(1))
        assert client.n_running == 0
        assert sink.data.endswith(frame(Cancel(1)))
        await come(client, *[delta(1)] * 10)  # on their way when it was cancelled
        with pytest.raises(EngineError, match="as fast as it is generated"):
            await anext(generation)
        with pytest.raises(StopAsyncIteration):
            await anext(generation)

    run(test)


def test_a_reader_that_catches_up_goes_on() -> None:
    """All comes at once after a pause of the whole process, and is read before anything ends."""

    async def test(client: EngineClient, sink: Sink, generation: Generation) -> None:
        for _ in range(3):
            client.dispatch(Step([delta(1)] * (MANY + 1)))
            for _ in range(MANY + 1):
                assert isinstance(await anext(generation), Delta)
            await come(client)
        assert client.n_running == 1

    run(test)


def test_a_complete_result_is_kept() -> None:
    async def test(client: EngineClient, sink: Sink, generation: Generation) -> None:
        await come(client, *[delta(1)] * (MANY + 1), finished(id=1))
        events = [event async for event in generation]
        assert len(events) == MANY + 2
        assert isinstance(events[-1], Finished)

    run(test)


def test_a_reader_knows_whether_it_has_to_wait() -> None:
    async def test(client: EngineClient, sink: Sink, generation: Generation) -> None:
        assert not generation.ready
        await come(client, delta(1), delta(1))
        assert [generation.ready, (await anext(generation)).text, generation.ready] == [
            True,
            "a",
            True,
        ]
        await anext(generation)
        assert not generation.ready
        await come(client, finished(id=1))
        assert isinstance(await anext(generation), Finished)
        assert generation.ready, "nothing else comes"

    run(test)


@pytest.mark.parametrize("n_probs", [0, 1023])
def test_a_generation_far_ahead_of_its_reader_is_paused_until_that_has_caught_up(
    n_probs: int,
) -> None:
    async def test(client: EngineClient, sink: Sink, generation: Generation) -> None:
        n = min(generation_module.AHEAD, generation_module.HEAVY // (n_probs + 1))
        await come(client, *[delta(1, n_probs)] * n)
        assert frame(Pause(1)) not in sink.data
        await come(client, delta(1, n_probs))
        assert sink.data.endswith(frame(Pause(1)))
        await come(client, *[delta(1, n_probs)] * 3)  # were on their way
        for _ in range(4 + n // 2 - 1):
            await anext(generation)
        await asyncio.sleep(0.01)
        assert sink.data.endswith(frame(Pause(1))), "once, and not yet"
        await anext(generation)
        await asyncio.sleep(0.01)
        assert sink.data.endswith(frame(Resume(1)))
        await come(client, *[delta(1, n_probs)] * n)
        assert sink.data.endswith(frame(Pause(1))), "and again"
        generation.cancel()
        await asyncio.sleep(0.01)
        assert sink.data.endswith(frame(Cancel(1)))

    run(test)


def test_who_reads_all_that_has_come_together_is_not_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation_module, "PAUSE_GRACE", 3600.0)

    async def test(client: EngineClient, sink: Sink, generation: Generation) -> None:
        client.dispatch(Step([delta(1)] * (generation_module.AHEAD + 1)))
        for _ in range(generation_module.AHEAD + 1):
            await anext(generation)
        assert generation._ahead is not None
        generation._pause()  # as the timer does
        client.dispatch(Step([delta(1)] * (generation_module.AHEAD + 1)))
        client.dispatch(Step([finished(id=1)]))
        generation._pause()
        await asyncio.sleep(0.01)
        assert frame(Pause(1)) not in sink.data, "nothing more comes"

    run(test)
