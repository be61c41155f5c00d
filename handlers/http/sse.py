"""Server-sent events, or lines of JSON: from an iterator of frames to a response.

This is the hot path of the server process: one frame per stream and engine step. A task of
its own pulls the frames, so that those which are ready together leave in one write.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from handlers.http.disconnect import CancelOnDisconnect
from handlers.http.errors import Failure, describe
from handlers.http.ollama import NDJSON, error_document

DONE = b"data: [DONE]\n\n"
"""What ends an OpenAI stream."""

BACKLOG = 256  # frames pulled ahead of a client that reads slowly
PING_SECONDS = 10.0  # of silence

_encoder = msgspec.json.Encoder()


def frame(data: Any, event: str | None = None) -> bytes:
    """One event with `data` as JSON, of the type `event` if that is given."""
    head = b"data: " if event is None else b"event: %b\ndata: " % event.encode()
    return b"".join((head, _encoder.encode(data), b"\n\n"))


def line(data: Any) -> bytes:
    """One line with `data` as JSON, also for readers to whom Unicode's separators end a line, as
    to Python's `splitlines`, which Ollama's client reads with."""
    text = _encoder.encode(data)
    for separator in "\x85\u2028\u2029":
        text = text.replace(separator.encode(), b"\\u%04x" % ord(separator))
    return text + b"\n"


def error_frame(failure: Failure) -> bytes:
    """An event `{"error": {...}}`."""
    return frame(failure.envelope())


def event_stream(
    frames: AsyncIterator[bytes],
    *,
    failed: Callable[[Failure], bytes] = error_frame,
    ping: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """The response that sends `frames` as they come, each one or more whole events.

    An exception before the first frame becomes an ordinary error response; a later one
    becomes the last event, made by `failed`. Once the stream has begun, `ping` is sent whenever
    there was nothing else for `PING_SECONDS`. When the client goes away, `frames` sees
    `CancelledError` where it waits.
    """
    return _EventStream(frames, failed, ping, headers or {})


def line_stream(lines: AsyncIterator[bytes]) -> Response:
    """The same for lines of JSON, as Ollama streams them; a last line `{"error": "..."}`."""
    return _LineStream(lines, lambda failure: line(error_document(failure.info)), None, {})


class _EventStream(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        failed: Callable[[Failure], bytes],
        ping: bytes | None,
        headers: dict[str, str],
    ) -> None:
        self._frames = frames
        self._failed = failed
        self._ping = ping
        self.status_code = 200
        self.background = None
        # Proxies must neither keep the events for later nor collect them.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(BACKLOG)
        pump = asyncio.create_task(_pump(self._frames, queue))
        try:
            with suppress(ClientDisconnect):  # nobody is left to be told
                async with CancelOnDisconnect(receive):
                    await self._send_all(queue, send)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _send_all(self, queue: asyncio.Queue[bytes | Exception | None], send: Send) -> None:
        started = False
        more = True
        while more:
            item = await self._next(queue, started)
            burst: list[bytes] = []
            while isinstance(item, bytes):
                burst.append(item)
                if queue.empty():
                    break
                item = queue.get_nowait()
            else:
                more = False
                if item is not None:
                    if not (started or burst):
                        raise item
                    burst.append(self._failed(describe(item)))
            if not started:
                started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
            await send({"type": "http.response.body", "body": b"".join(burst), "more_body": more})

    async def _next(
        self, queue: asyncio.Queue[bytes | Exception | None], started: bool
    ) -> bytes | Exception | None:
        if self._ping is None or not started or not queue.empty():
            return await queue.get()
        try:
            async with asyncio.timeout(PING_SECONDS):
                return await queue.get()
        except TimeoutError:
            return self._ping


class _LineStream(_EventStream):
    media_type = NDJSON


async def _pump(
    frames: AsyncIterator[bytes], queue: asyncio.Queue[bytes | Exception | None]
) -> None:
    """Puts every frame into `queue`, then how it ended: an exception, or None."""
    end: Exception | None = None
    try:
        async for item in frames:
            await queue.put(item)
    except Exception as error:
        end = error
    finally:
        # A generator left in the middle frees what it holds now, not when it is collected.
        if (close := getattr(frames, "aclose", None)) is not None:
            await close()
    await queue.put(end)
