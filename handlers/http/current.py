"""The HTTP request that the running task answers, for functions below its handler."""

from contextvars import ContextVar

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
