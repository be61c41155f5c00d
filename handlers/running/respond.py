"""The response to a generation request, whole or as a stream, for every API.

An API provides the form of its answer (`Format`). This module begins streams, ends them early if
the client disconnects, and releases the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol, Self, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.engine import system
from specllama.engine.wire.replies import Begun, Queued
from specllama.handlers.http.api_keys import owner_of
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.errors import HttpFailure, RequestError, describe
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import EVENT_STREAM, Joined, Ping, event_stream
from specllama.handlers.running.ongoing import KeptStream, OffsetLostError, Owner
from specllama.handlers.running.runtime import runtime

# ---- streams that continue without their client -------------------------------------------


HEADER = b"x-conversation-id"


def stream_owner(scope: Scope) -> Owner | None:
    """Returns the owner of a request's stream; None if the request names no conversation."""
    for name, value in scope["headers"]:
        if name == HEADER and value:
            return Owner(owner_of(scope), value.decode("utf-8", "replace"))
    return None


async def kept_response(
    stream: KeptStream,
    frames: AsyncGenerator[bytes, None],
    failed: Callable[[HttpFailure], bytes],
    *,
    ping: Ping | None,
    headers: Mapping[str, str] | None,
) -> Response:
    """Returns the response that sends `stream`. A task writes all `frames` to it, even if the
    client disconnects, whether before or after the first one. The arguments are as in
    `event_stream`, except that pings are in `stream`, because clients count its bytes to resume it.

    Raises an exception that occurs before the first frame, and removes `stream` then.
    """
    scope = current_scope()
    starting = asyncio.create_task(_first(frames))
    stream.made_by(starting.cancel)
    try:
        first = await starting
    except BaseException as error:
        ended = isinstance(error, asyncio.CancelledError) and stream.done  # by another request
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
    """Yields the bytes of a stream from `offset` on, as they arrive. Raises RequestError if some
    have been dropped."""
    try:
        async for data in stream.read(offset):
            yield data
    except OffsetLostError:
        raise RequestError(400, "Stream offset lost, please restart") from None


async def _ping(stream: KeptStream, ping: Ping) -> None:
    """Adds a ping to `stream` after each interval without other bytes."""
    while True:
        silence = system.now() - stream.changed
        if silence >= ping.seconds:
            stream.append(ping.data)
            silence = 0.0
        await asyncio.sleep(ping.seconds - silence)


class _Lasting(Response):
    """A `response` that also waits for `making`, the task that reads `frames`, so that the model
    stays leased until then."""

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
            self._making.cancel()  # it has ended, unless the server shuts down
            with suppress(asyncio.CancelledError):
                await self._making
            await self._frames.aclose()  # not done by a task that was cancelled before its start


class Indexed(Protocol):
    """An event of one text of an answer."""

    @property
    def index(self) -> int:
        """The number of the text."""


Event = TypeVar("Event", bound=Indexed)
EventIn = TypeVar("EventIn", bound=Indexed, contravariant=True)
EventOut = TypeVar("EventOut", bound=Indexed, covariant=True)
Result = TypeVar("Result")


class Running(Protocol[EventOut, Result]):
    """The generations of one request, `AnswerBatch` or `ChatBatch`: a context manager whose exit
    cancels unfinished generations. They are read either as results, or, after `begun`, as
    events."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    @property
    def ready(self) -> bool:
        """True if the next event has arrived already, or the last one has been read."""

    @property
    def queue(self) -> Queued | None:
        """The best place of its texts in the queue; None if no text waits."""

    async def accepted(self) -> None: ...

    async def begun(self) -> Begun: ...

    def events(self) -> AsyncIterator[EventOut]: ...

    async def results(self) -> list[Result]: ...


class Format(Protocol[EventIn, Result]):
    """The answer to one request in the form of an API. Each answer needs a new object, which may
    have a state."""

    def begin(self, event: EventIn) -> bytes:
        """Returns the bytes before the first event of each text; possibly empty."""

    def event(self, event: EventIn) -> bytes:
        """Returns all frames for one event; possibly empty."""

    async def end(self) -> bytes:
        """Returns the bytes after the last event; possibly empty. The engine is still leased."""

    def failed(self, failure: HttpFailure) -> bytes:
        """Returns the end of a stream that fails after its beginning."""

    async def whole(self, results: list[Result]) -> Any:
        """Returns the answer without a stream, as a value for JSON."""


async def respond(
    start: Callable[[], Running[Event, Result]],
    form: Format[Event, Result],
    *,
    stream: bool,
    media_type: str = EVENT_STREAM,
    ping: Ping | None = None,
    headers: Mapping[str, str] | None = None,
    shows_queue: bool = False,
) -> Response:
    """Returns the response to a request whose generations `start` submits to the engine.

    A stream of `media_type` begins as soon as the engine begins with the prompt, so that an earlier
    error is an ordinary error response. One that `shows_queue` begins as soon as the request is
    accepted. `ping` is its keep-alive frame (`handlers.http.streams.event_stream`). `headers` are
    added to both kinds of response.

    If the client disconnects, the generations are cancelled. Only a stream of server-sent events
    whose request names a conversation continues, so that the client can resume it.

    Raises EngineError and `starlette.requests.ClientDisconnect` for a whole answer.
    """
    owner = stream_owner(current_scope()) if media_type == EVENT_STREAM else None
    if owner is not None:
        streams = runtime().streams
        streams.remove(owner)  # this answer replaces the conversation's stream
        if stream and (kept := streams.open(owner)) is not None:
            made = frames(start, form, shows_queue=shows_queue)
            return await kept_response(kept, made, form.failed, ping=ping, headers=headers)
    if stream:
        return event_stream(
            frames(start, form, shows_queue=shows_queue),
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


QUEUE_SECONDS = 1.0
"""The time between two looks at the place of a request in the queue."""


async def _queue_comments(batch: Running[Event, Result]) -> AsyncGenerator[bytes, None]:
    """Yields a comment for each new place in the queue, until a text has a slot."""
    beginning = asyncio.create_task(batch.begun())
    last: Queued | None = None
    try:
        while not (await asyncio.wait({beginning}, timeout=QUEUE_SECONDS))[0]:
            queue = batch.queue
            if queue is not None and queue != last:
                last = queue
                yield b": queued %d, about %.1f s\n\n" % (queue.place, queue.wait_ms / 1e3)
        await beginning
    finally:
        beginning.cancel()


async def frames(
    start: Callable[[], Running[Event, Result]],
    form: Format[Event, Result],
    *,
    shows_queue: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Yields the frames of a stream, after an empty one as soon as the engine has begun. With
    `shows_queue`, comments about the queue come first, after an empty frame as soon as the engine
    has accepted the request."""
    begun: set[int] = set()
    async with start() as batch:
        if shows_queue:
            await batch.accepted()
            yield b""
            async with aclosing(_queue_comments(batch)) as comments:
                async for comment in comments:
                    yield comment
        else:
            await batch.begun()
            yield b""  # the response begins, with its headers
        async for event in batch.events():
            data = b""
            if event.index not in begun:
                begun.add(event.index)
                data = form.begin(event)
            data += form.event(event)
            yield Joined(data) if batch.ready else data
        yield Joined(await form.end())
