"""The HTTP request of the running task, for functions that don't have it as an argument."""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Returns the ASGI scope of the request. Raises LookupError outside of a request."""
    return _scope.get()


def current_receive() -> Receive:
    """Returns the ASGI channel that reports the end of the connection. Raises LookupError outside
    of a request."""
    return _receive.get()


# ---- Work that ends when the client disconnects.
#
# If a client closes its connection, an ASGI server doesn't cancel the request's task. It only sends
# a message on the `receive` channel, which the task has to read.


T = TypeVar("T")


class CancelOnDisconnect:
    """An async context manager that cancels its body if the client disconnects.

    Works like `asyncio.timeout`: `CancelledError` is raised in the body, and `ClientDisconnect` by
    the context. No other task may read `receive` meanwhile.
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
        # Its CancelledError will refer to this object. Without a cycle of references, the objects
        # of the request are freed at once, not by the garbage collector.
        del self._watcher
        # A cancellation by another task (a shutdown) stays a CancelledError.
        if (
            self._gone
            and self._task.uncancel() <= self._cancelling
            and exc_type is asyncio.CancelledError
        ):
            raise ClientDisconnect from exc


async def until_disconnect(work: Awaitable[T]) -> T:
    """Returns the result of `work`, which is cancelled if the client of the current request
    disconnects.

    Raises the exceptions of `work`, and `starlette.requests.ClientDisconnect`.
    """
    async with CancelOnDisconnect(current_receive()):
        return await work


def ignore_disconnect() -> None:
    """Has the current task, and the tasks that it starts from now on, go on if the client
    disconnects: `until_disconnect` doesn't notice it any more."""
    _receive.set(_never)


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nothing sets the event")
