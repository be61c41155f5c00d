"""Streamed responses, and time limits without a timer for work that doesn't wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.engine import system
from specllama.handlers.http.current import CancelOnDisconnect
from specllama.handlers.http.errors import HttpFailure, describe
from specllama.handlers.http.json_answer import encode

T = TypeVar("T")


class EagerAwaitable(Generic[T]):
    """Runs `work` at once, until it has to wait; its rest has to be awaited. Raises the exceptions
    of `work`."""

    def __init__(self, work: Awaitable[T]) -> None:
        self.done = False
        self._result: Any = None
        self._steps = work.__await__()
        self._awaited: Any = None
        self._go_on(self._steps.__next__)

    def __await__(self) -> Generator[Any, Any, T]:
        while not self.done:
            try:
                sent = yield self._awaited
            except BaseException as error:  # usually a cancellation, which `work` has to get
                self._go_on(self._steps.throw, error)
            else:
                self._go_on(self._steps.send, sent)
        result: T = self._result
        return result

    def _go_on(self, step: Callable[..., Any], *argument: Any) -> None:
        try:
            self._awaited = step(*argument)
        except StopIteration as end:
            self.done, self._result = True, end.value


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Returns the result of `work`. Raises TimeoutError if it takes longer than `seconds`.

    Work that doesn't wait, such as reading a body that arrived together with its head, gets no
    timer, because creating and removing a timer takes longer than that work.
    """
    begun = EagerAwaitable(work)
    if begun.done:
        return await begun
    async with asyncio.timeout(seconds):
        return await begun


async def in_thread_within(seconds: float, work: Callable[[], object], name: str) -> None:
    """Runs `work` in a thread of its own, and returns when it has ended, or after `seconds`. Then
    the thread goes on, but doesn't keep the process from ending."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # the loop is closed, because this has taken too long
            loop.call_soon_threadsafe(ended.set)

    system.start_thread(run, name)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ended.wait()


# ---- Responses from an iterator of frames: server-sent events, or lines of JSON.
#
# This is the hot path of the server process: one frame per stream and engine step.


EVENT_STREAM = "text/event-stream"

DONE = b"data: [DONE]\n\n"
"""The last event of an OpenAI stream."""

COMMENT = b":\n\n"
"""A comment, which every client of server-sent events skips."""


class Joined(bytes):
    """A frame that is sent together with the next one, or with the end of the stream, because that
    is available already."""


class Ping(NamedTuple):
    """A keep-alive frame, sent after `seconds` without another one."""

    seconds: float
    data: bytes = COMMENT


def sse_event(data: Any, event: str | None = None) -> bytes:
    """Returns one event with `data` as JSON, of the type `event` if that is given."""
    head = b"data: " if event is None else b"event: %b\ndata: " % event.encode()
    return b"".join((head, encode(data), b"\n\n"))


def line(data: Any) -> bytes:
    """Returns one line with `data` as JSON."""
    return encode(data) + b"\n"


def error_frame(failure: HttpFailure) -> bytes:
    """Returns an event `{"error": {...}}`."""
    return sse_event(failure.envelope())


def event_stream(
    frames: AsyncIterator[bytes],
    *,
    failed: Callable[[HttpFailure], bytes] = error_frame,
    ping: Ping | None = None,
    headers: Mapping[str, str] | None = None,
    media_type: str = EVENT_STREAM,
) -> Response:
    """Returns the response that sends `frames` as they arrive. A frame has whole events, or whole
    lines if `media_type` is a format of lines; it may be empty. The first frame that isn't `Joined`
    begins the response.

    An exception before the first frame becomes an ordinary error response; a later one becomes the
    last event, made by `failed`. In a stream that has begun, `ping` is sent after its time without
    other frames. If the client disconnects, `CancelledError` is raised in `frames`.
    """
    return _EventStream(frames, failed, ping, headers or {}, media_type)


class _EventStream(Response):
    def __init__(
        self,
        frames: AsyncIterator[bytes],
        failed: Callable[[HttpFailure], bytes],
        ping: Ping | None,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self.media_type = media_type
        self._frames = frames
        self._failed = failed
        self._ping = ping
        self._started = False
        self._sent_at = 0.0  # when the last frame was sent (`system.now`)
        self._n_sending = 0
        self._is_over = False  # the last frame was sent, or is being sent
        self.status_code = 200
        self.background = None
        # Proxies must neither cache the events nor buffer them.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pinging = self._ping and asyncio.create_task(self._send_pings(self._ping, send))
        try:
            with suppress(ClientDisconnect):  # the client has left
                async with CancelOnDisconnect(receive):
                    # A separate task is resumed for each frame without passing through the
                    # coroutines of all middlewares.
                    await asyncio.create_task(self._send_all(scope, send))
        finally:
            if pinging:
                pinging.cancel()
                await asyncio.wait({pinging})
            # An unfinished generator is closed now, not when it is garbage-collected.
            if (close := getattr(self._frames, "aclose", None)) is not None:
                await close()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        held: list[bytes] = []  # frames that are sent with the next one
        try:
            async for frame in self._frames:
                held.append(frame)
                if not isinstance(frame, Joined) and (any(held) or not self._started):
                    await self._send(send, held)
                    held.clear()
        except Exception as error:
            if not (self._started or any(held)):
                raise
            held.append(self._failed(describe(error, scope)))
        await self._send(send, held, more=False)

    async def _send(self, send: Send, frames: list[bytes], *, more: bool = True) -> None:
        self._is_over |= not more
        self._n_sending += 1
        try:
            if not self._started:
                self._started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
            body = b"".join(frames)
            await send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._n_sending -= 1
            self._sent_at = system.now()

    async def _send_pings(self, ping: Ping, send: Send) -> None:
        """Sends pings after the stream has begun. No ping is sent while another frame is being
        sent, since that may be the last one."""
        while not self._is_over:
            is_silent = self._started and not self._n_sending
            silence = system.now() - self._sent_at if is_silent else 0.0
            if is_silent and silence >= ping.seconds:
                await self._send(send, [ping.data])
                silence = 0.0
            await asyncio.sleep(ping.seconds - silence)
