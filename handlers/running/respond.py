"""The answer to a generating request, whole or as a stream, in the same way for every API.

An API says how its answer looks (`Format`). When a stream begins, what ends it early, and who
releases the engine, is settled here.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.engine import system
from specllama.engine.wire.replies import Begun
from specllama.handlers.http.api_keys import key_of
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.errors import HttpFailure, RequestError, describe
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import EVENT_STREAM, Joined, Ping, event_stream
from specllama.handlers.running.ongoing import KeptStream, OffsetLostError, Owner
from specllama.handlers.running.runtime import runtime

# ---- Streams that go on without their client: the work for one, and the answers that show it.


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
    failed: Callable[[HttpFailure], bytes],
    *,
    ping: Ping | None,
    headers: Mapping[str, str] | None,
) -> Response:
    """The response that shows `stream`, which is made of `frames` to their end, also without the
    client. The arguments are as in `event_stream`, except that a `ping` is a part of the stream:
    clients count bytes.

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
        silence = system.now() - stream.changed
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


class Indexed(Protocol):
    """A format's document for an event of the engine."""

    @property
    def index(self) -> int:
        """Number of the text that the event belongs to."""


Event = TypeVar("Event", bound=Indexed)
EventIn = TypeVar("EventIn", bound=Indexed, contravariant=True)
EventOut = TypeVar("EventOut", bound=Indexed, covariant=True)
Result = TypeVar("Result")


class Running(Protocol[EventOut, Result]):
    """The generations of one request, `Batch` or `ChatBatch`: a context that cancels what still
    runs at its end. They are read either as results, or, once they have begun, as events."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    @property
    def ready(self) -> bool:
        """True if nothing has to be waited for until the next event, or behind the last one."""

    async def begun(self) -> Begun: ...

    def events(self) -> AsyncIterator[EventOut]: ...

    async def results(self) -> list[Result]: ...


class Format(Protocol[EventIn, Result]):
    """The answer to one request in the form of an API. An object is good for one answer: it may
    remember what it has sent."""

    def begin(self, event: EventIn) -> bytes:
        """Bytes before the first event of each text; maybe none."""

    def event(self, event: EventIn) -> bytes:
        """All frames that one event gives rise to; maybe none."""

    async def end(self) -> bytes:
        """Bytes after the last event; maybe none. The engine is still held."""

    def failed(self, failure: HttpFailure) -> bytes:
        """The end of a stream that fails after its beginning."""

    async def whole(self, results: list[Result]) -> Any:
        """The answer without a stream, as a value that JSON can hold."""


async def respond(
    start: Callable[[], Running[Event, Result]],
    form: Format[Event, Result],
    *,
    stream: bool,
    media_type: str = EVENT_STREAM,
    ping: Ping | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response to a request whose generations `start` submits to the engine.

    A stream of `media_type` begins as soon as the engine begins with the prompt, so that an error
    before that is an ordinary error response; `ping` is sent in its silences
    (`handlers.http.streams.event_stream`).
    When the client goes away, the generations are cancelled, but for a stream of server-sent events
    that names a conversation: that goes on, and the client can come back to it. `headers` go with
    both kinds.

    Raises what the generations of a whole answer raise: EngineError, and
    `starlette.requests.ClientDisconnect`.
    """
    owner = owner_of(current_scope()) if media_type == EVENT_STREAM else None
    if owner is not None:
        streams = runtime().streams
        streams.remove(owner)  # the conversation goes on with this answer
        if stream and (kept := streams.open(owner)) is not None:
            made = frames(start, form)
            return await kept_response(kept, made, form.failed, ping=ping, headers=headers)
    if stream:
        return event_stream(
            frames(start, form),
            failed=form.failed,
            ping=ping,
            headers=headers,
            media_type=media_type,
        )
    async with start() as batch:
        content = await until_disconnect(_whole(batch, form))
    return JSONAnswer(content, headers=headers)


async def _whole(batch: Running[Event, Result], form: Format[Event, Result]) -> Any:
    return await form.whole(await batch.results())


async def frames(
    start: Callable[[], Running[Event, Result]], form: Format[Event, Result]
) -> AsyncGenerator[bytes, None]:
    """The frames of a stream; the first, an empty one, says that the engine has begun."""
    begun: set[int] = set()
    async with start() as batch:
        await batch.begun()
        yield b""  # the head of the response
        async for event in batch.events():
            data = b""
            if event.index not in begun:
                begun.add(event.index)
                data = form.begin(event)
            data += form.event(event)
            yield Joined(data) if batch.ready else data
        yield Joined(await form.end())
