"""Waiting with a time limit, without the price of one where there is nothing to wait for."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`. Raises TimeoutError if it takes longer than `seconds`.

    Work that never has to wait, as reading a body that came together with its head, gets no
    timer: setting one up and taking it down again takes longer than such work does.
    """
    steps = work.__await__()
    try:
        awaited = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(seconds):
        return await _rest(steps, awaited)


@types.coroutine
def _rest(steps: Generator[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """What has begun with `steps`, and waits for `awaited`, to its end."""
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
        except StopIteration as done:
            result: T = done.value
            return result
