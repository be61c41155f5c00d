"""Streams that go on without their client: the work for one, and the answers that show it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.handlers.http.api_keys import key_of
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.disconnect import until_disconnect
from specllama.handlers.http.errors import Failure, RequestError, describe
from specllama.handlers.http.sse import Ping, event_stream
from specllama.handlers.running.kept_streams import KeptStream, OffsetLostError, Owner
from specllama.handlers.running.runtime import runtime

HEADER = b"x-conversation-id"


def owner_of(scope: Scope) -> Owner | None:
    """Whose stream the answer to a request is; None if it names no conversation."""
    for name, value in scope["headers"]:
        if name == HEADER and value:
            return Owner(key_of(scope) or b"", value.decode("utf-8", "replace"))
    return None


async def kept_response(
    stream: KeptStream,
    frames: AsyncGenerator[bytes, None],
    failed: Callable[[Failure], bytes],
    *,
    ping: Ping | None,
    headers: Mapping[str, str] | None,
) -> Response:
    """The response that shows `stream`, which is made of `frames` to their end, also without the
    client. The arguments are as in `handlers.http.sse.event_stream`, but that a `ping` is a part of
    the stream: clients count bytes.

    Raises what comes before the first frame; nothing is kept then.
    """
    scope = current_scope()
    starting = asyncio.create_task(_first(frames))
    stream.made_by(starting.cancel)
    try:
        first = await until_disconnect(starting)
    except BaseException as error:
        ended = isinstance(error, asyncio.CancelledError) and stream.done  # somebody has ended it
        runtime().streams.discard(stream)
        await frames.aclose()
        if ended:
            return event_stream(show(stream), headers=headers)
        raise

    async def make() -> None:
        pinging = asyncio.create_task(_ping(stream, ping)) if ping else None
        try:
            stream.append(first)
            async for frame in frames:
                stream.append(frame)
        except Exception as error:
            stream.append(failed(describe(error, scope)))
        finally:
            if pinging is not None:
                pinging.cancel()
            stream.finish()

    making = asyncio.create_task(make())
    stream.made_by(making.cancel)
    return _Lasting(event_stream(show(stream), failed=failed, headers=headers), making, frames)


async def _first(frames: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(frames)


async def show(stream: KeptStream, offset: int = 0) -> AsyncIterator[bytes]:
    """The bytes of a stream from `offset` on, as they come. Raises RequestError if they are not
    all kept."""
    try:
        async for data in stream.read(offset):
            yield data
    except OffsetLostError:
        raise RequestError(400, "Stream offset lost, please restart") from None


async def _ping(stream: KeptStream, ping: Ping) -> None:
    """Whenever nothing else came for so long."""
    while True:
        silence = time.monotonic() - stream.changed
        if silence >= ping.seconds:
            stream.append(ping.data)
            silence = 0.0
        await asyncio.sleep(ping.seconds - silence)


class _Lasting(Response):
    """`response`, and behind it the end of `making`, which takes `frames`: until then the model is
    held."""

    def __init__(
        self,
        response: Response,
        making: "asyncio.Task[None]",
        frames: AsyncGenerator[bytes, None],
    ) -> None:
        self._response = response
        self._making = making
        self._frames = frames
        self.status_code = response.status_code
        self.background = None
        self.raw_headers = response.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
            await asyncio.wait({self._making})
        finally:
            self._making.cancel()  # has ended, unless this is the end of the server
            with suppress(asyncio.CancelledError):
                await self._making
            await self._frames.aclose()  # a task that was cancelled before it began has not
