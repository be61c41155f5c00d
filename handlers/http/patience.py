"""Work that may be done at once, and costs nothing but itself then."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Begun(Generic[T]):
    """`work` as far as it goes without waiting. What is left of it has to be awaited, or ended
    by `interrupt`. Raises what the work raises meanwhile."""

    def __init__(self, work: Awaitable[T]) -> None:
        self.done = False
        self._result: T | None = None
        self._steps = work.__await__()
        self._awaited: Any = None
        try:
            self._awaited = next(self._steps)
        except StopIteration as end:
            self.done, self._result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done:
            self._result = yield from _rest(self._steps, self._awaited)
            self.done = True
        return cast(T, self._result)

    async def interrupt(self, error: BaseException) -> None:
        """Let the work see `error` where it waits, and wait for its end. Raises what it raises:
        `error` itself, most likely."""
        if not self.done:
            await _interrupted(self._steps, error)


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`. Raises TimeoutError if it takes longer than `seconds`.

    Work that never has to wait, as reading a body that came together with its head, gets no
    timer: setting one up and taking it down again takes longer than such work does.
    """
    begun = Begun(work)
    if begun.done:
        return await begun
    async with asyncio.timeout(seconds):
        return await begun


@types.coroutine
def _rest(steps: Generator[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Runs what has begun with `steps`, and waits for `awaited`, to its end."""
    while True:
        try:
            sent = yield awaited
        except BaseException as error:  # a cancellation, most likely: it is for the work
            step: Callable[[Any], Any] = steps.throw
            argument: Any = error
        else:
            step, argument = steps.send, sent
        try:
            awaited = step(argument)
        except StopIteration as end:
            result: T = end.value
            return result


@types.coroutine
def _interrupted(steps: Generator[Any, Any, T], error: BaseException) -> Generator[Any, Any, None]:
    try:
        awaited = steps.throw(error)
    except StopIteration:
        return
    yield from _rest(steps, awaited)
