"""The HTTP request that the running task answers, for functions below its handler."""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

_scope: ContextVar[Scope] = ContextVar("scope")
_receive: ContextVar[Receive] = ContextVar("receive")


class Current:
    """The innermost ASGI middleware: makes a request the current one of its task."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _scope.set(scope)
        _receive.set(receive)
        await self.app(scope, receive, send)


def current_scope() -> Scope:
    """The ASGI scope of the request. Raises LookupError outside of one."""
    return _scope.get()


def current_receive() -> Receive:
    """The ASGI channel that reports the end of the connection. Raises LookupError outside
    of a request."""
    return _receive.get()


# ---- Work that ends when the client disconnects.
#
# An ASGI server cancels nothing by itself when the client of a request closes its connection: it
# only says so on the `receive` channel, which has to be watched.


T = TypeVar("T")


class CancelOnDisconnect:
    """An async context that cancels its body when the client goes away.

    Works like `asyncio.timeout`: the body sees `CancelledError`, the caller of the context
    `ClientDisconnect`. Nobody else may read `receive` meanwhile.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine of asyncio always runs in a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watcher.cancel()
        # Somebody else's cancellation (a shutdown) must go on as what it is.
        if (
            self._gone
            and self._task.uncancel() <= self._cancelling
            and exc_type is asyncio.CancelledError
        ):
            raise ClientDisconnect from exc


async def until_disconnect(work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client of the current request goes.

    Raises what `work` raises, and `starlette.requests.ClientDisconnect`.
    """
    async with CancelOnDisconnect(current_receive()):
        return await work
