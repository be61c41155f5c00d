"""Work with a time limit, whenever it has to wait and however it ends; frames on their way out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from contract_tests.kit.server import SECONDS
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.log_fields import begin_log_fields
from specllama.handlers.http.streams import EagerAwaitable, Joined, Ping, event_stream, within


def test_work_that_need_not_wait() -> None:
    async def ready() -> int:
        return 7

    async def failing() -> int:
        raise LookupError

    async def both() -> None:
        assert await within(0.0, ready()) == 7  # no timer, so no timeout
        with pytest.raises(LookupError):
            await within(0.0, failing())

    asyncio.run(both())


@pytest.mark.parametrize("n_waits", [1, 2, 5])
def test_work_that_waits(n_waits: int) -> None:
    async def slow(fails: bool) -> int:
        for _ in range(n_waits):
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        if fails:
            raise LookupError
        return n_waits

    async def both() -> None:
        assert await within(SECONDS, slow(False)) == n_waits
        with pytest.raises(LookupError):
            await within(SECONDS, slow(True))

    asyncio.run(both())


def test_too_long() -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        asyncio.run(within(0.001, forever()))
    assert ended


def test_a_cancellation_reaches_the_work() -> None:
    seen: list[str] = []

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    async def cancel(work: Callable[[], Awaitable[Any]]) -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel(lambda: within(SECONDS, stubborn())))
    assert seen == ["cancelled"]


def test_work_may_swallow_a_cancellation() -> None:
    async def deaf() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    async def cancel() -> None:
        task = asyncio.ensure_future(within(SECONDS, deaf()))
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "done"

    asyncio.run(cancel())


def test_begun_work_goes_on_when_it_is_awaited() -> None:
    seen: list[int] = []

    async def work() -> str:
        seen.append(1)
        await asyncio.sleep(0.001)
        seen.append(2)
        return "result"

    async def main() -> None:
        begun = EagerAwaitable(work())
        assert (begun.done, seen) == (False, [1])
        await asyncio.sleep(0.01)  # its pending work ends before the next request
        assert seen == [1]
        assert await begun == "result"
        assert (begun.done, seen) == (True, [1, 2])

    asyncio.run(main())


def test_joined_frames_leave_with_the_next_one_or_with_the_end() -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield b""  # the head
        yield Joined(b"1")
        yield Joined(b"")
        yield b"2"
        yield b""  # of an event without text
        yield b"3"
        yield Joined(b"4")
        yield b""
        yield Joined(b"5")

    assert sent(frames()) == [(b"", True), (b"12", True), (b"3", True), (b"4", True), (b"5", False)]


def test_held_events_are_sent_before_an_error() -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield Joined(b"1")
        raise RequestError(400, "late")

    assert sent(frames()) == [(b"1failed 400", False)]


def sent(frames: AsyncIterator[bytes]) -> list[tuple[bytes, bool]]:
    """The bodies of a stream's messages, and whether more follow."""
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    response = event_stream(frames, failed=lambda failure: b"failed %d" % failure.status)
    scope = {"type": "http", "headers": [], "state": {}}
    begin_log_fields(scope)
    asyncio.run(response(scope, receive, send))
    bodies = [message for message in messages if message["type"] == "http.response.body"]
    return [(message["body"], message["more_body"]) for message in bodies]


def test_no_ping_stands_behind_the_end() -> None:
    """A client that takes the last frame late gets none, either."""
    messages: list[dict[str, Any]] = []

    async def frames() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(dict(message))
        for _ in range(20):  # in which the pings, of no seconds each, have their turns
            await asyncio.sleep(0)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    response = event_stream(frames(), ping=Ping(0.0))
    asyncio.run(response({"type": "http"}, receive, send))
    bodies = [message for message in messages if message["type"] == "http.response.body"]
    assert [message["more_body"] for message in bodies].index(False) == len(bodies) - 1
