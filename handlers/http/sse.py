"""Server-sent events, or lines of JSON: from an iterator of frames to a response.

This is the hot path of the server process: one frame per stream and engine step. Frames that
are ready together leave in one write.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.handlers.http.disconnect import CancelOnDisconnect
from specllama.handlers.http.encoding import encode
from specllama.handlers.http.errors import Failure, describe
from specllama.handlers.http.patience import Begun

EVENT_STREAM = "text/event-stream"

DONE = b"data: [DONE]\n\n"
"""The last event of an OpenAI stream."""

COMMENT = b":\n\n"
"""What every client of server-sent events passes over."""


class Ping(NamedTuple):
    """What is sent after so many seconds without anything else."""

    seconds: float
    data: bytes = COMMENT


def sse_event(data: Any, event: str | None = None) -> bytes:
    """One event with `data` as JSON, of the type `event` if that is given."""
    head = b"data: " if event is None else b"event: %b\ndata: " % event.encode()
    return b"".join((head, encode(data), b"\n\n"))


def line(data: Any) -> bytes:
    """One line with `data` as JSON."""
    return encode(data) + b"\n"


def error_frame(failure: Failure) -> bytes:
    """An event `{"error": {...}}`."""
    return sse_event(failure.envelope())


def event_stream(
    frames: AsyncIterator[bytes],
    *,
    failed: Callable[[Failure], bytes] = error_frame,
    ping: Ping | None = None,
    headers: Mapping[str, str] | None = None,
    media_type: str = EVENT_STREAM,
) -> Response:
    """The response that sends `frames` as they come, each one or more whole events, or lines if
    `media_type` is one of lines. An empty frame sends the head of the response.

    An exception before the first frame becomes an ordinary error response; a later one
    becomes the last event, made by `failed`. Once the stream has begun, `ping` is sent whenever
    there was nothing else for its time. When the client goes away, `frames` sees
    `CancelledError` where it waits.
    """
    return _EventStream(frames, failed, ping, headers or {}, media_type)


class _EventStream(Response):
    def __init__(
        self,
        frames: AsyncIterator[bytes],
        failed: Callable[[Failure], bytes],
        ping: Ping | None,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self.media_type = media_type
        self._frames = frames
        self._failed = failed
        self._ping = ping
        self._started = False
        self._sent_at = 0.0  # of time.monotonic(), the last frame
        self.status_code = 200
        self.background = None
        # Proxies must neither keep the events for later nor collect them.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pinging = self._ping and asyncio.create_task(self._send_pings(self._ping, send))
        try:
            with suppress(ClientDisconnect):  # the client has left
                async with CancelOnDisconnect(receive):
                    # A task of its own is woken up for each frame without going through all the
                    # middlewares that wait for this one.
                    await asyncio.create_task(self._send_all(scope, send))
        finally:
            if pinging:
                pinging.cancel()
                await asyncio.wait({pinging})
            # A generator left in the middle frees what it holds now, not when it is collected.
            if (close := getattr(self._frames, "aclose", None)) is not None:
                await close()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        burst: list[bytes] = []  # what is ready, and has not been sent yet
        try:
            while True:
                following = Begun(anext(self._frames))
                if burst and not following.done:
                    try:
                        await self._send(send, burst)
                    except BaseException as error:
                        await following.interrupt(error)
                        raise
                    burst.clear()
                burst.append(await following)
        except StopAsyncIteration:
            pass
        except Exception as error:
            if not (self._started or any(burst)):
                raise
            burst.append(self._failed(describe(error, scope)))
        await self._send(send, burst, more=False)

    async def _send(self, send: Send, frames: list[bytes], *, more: bool = True) -> None:
        self._sent_at = time.monotonic()
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

    async def _send_pings(self, ping: Ping, send: Send) -> None:
        """Once the stream has begun, whenever nothing else was sent for so long."""
        while True:
            silence = time.monotonic() - self._sent_at if self._started else 0.0
            if silence >= ping.seconds:
                await self._send(send, [ping.data])
                silence = 0.0
            await asyncio.sleep(ping.seconds - silence)
