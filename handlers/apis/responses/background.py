"""A response that is generated whether or not its client waits.

It is generated as a stream; a client that wants the stream hears it as long as it likes. How it
ends, the store knows: completed, failed or cancelled.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from typing import Any

from starlette.types import Scope

from specllama.engine.errors import invalid_request
from specllama.handlers.apis.responses.format import cancelled_response, failed_response
from specllama.handlers.apis.responses.stream import ResponsesFormat
from specllama.handlers.http.errors import describe

Keep = Callable[[dict[str, Any]], Awaitable[None]]


def check_kept(body: dict[str, Any]) -> None:
    """Raises EngineError (invalid_request_error) if nobody could ever see the response."""
    if body.get("background") and body.get("store") is False:
        raise invalid_request("background: the response has to be kept, so store can't be false")


class Listener:
    """The frames of a response for the client that asked for them, until it leaves."""

    def __init__(self, *, gone: bool = False) -> None:
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._gone = gone

    def put(self, frame: bytes | Exception | None) -> None:
        """None is the end."""
        if not self._gone:
            self._queue.put_nowait(frame)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Raises the exception that ends the response before its first frame."""
        try:
            while (frame := await self._queue.get()) is not None:
                if isinstance(frame, Exception):
                    raise frame
                yield frame
        finally:
            self._gone = True


async def generate(
    frames: AsyncGenerator[bytes, None],
    form: ResponsesFormat,
    shown: dict[str, Any],
    keep: Keep,
    listener: Listener,
    held: ExitStack,
    scope: Scope,
) -> None:
    """Runs the response of `form` to its end, and gives `held` back. `shown` is the response for
    those who ask meanwhile; `keep` stores it if it doesn't end by itself, which stores it, too."""
    with held:
        try:
            async with aclosing(frames):
                async for frame in frames:
                    shown["status"] = "in_progress"
                    listener.put(frame)
        except asyncio.CancelledError:
            if not form.completed:
                await keep(cancelled_response(shown))
        except Exception as error:
            failure = describe(error, scope)
            listener.put(error if shown["status"] == "queued" else form.failed(failure))
            if not form.completed:
                await keep(failed_response(shown, [], failure))
        finally:
            listener.put(None)
