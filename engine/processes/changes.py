"""Waiting for a condition on the plain attributes of objects that live in one event loop."""

import asyncio
from collections.abc import Callable


class Changes:
    """Like `asyncio.Condition`, but a change is announced without waiting for a lock, so that
    what changes state need not be a coroutine."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def announce(self) -> None:
        """Something has changed: everybody who waits looks at their condition again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition()`. It held at some moment, and need not hold any more."""
        while not condition():
            await self._next.wait()
