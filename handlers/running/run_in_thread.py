"""Runs conversions of large bodies in a thread.

The conversions are plain Python over many values, so that the interpreter can switch to other
threads meanwhile. There is only one such thread, so that the event loop gets at least every second
turn.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, ParamSpec, TypeVar

from specllama.engine import system
from specllama.handlers.http.bodies import LARGE, n_values
from specllama.handlers.http.current import current_scope

TURN: Final = 0.001  # s, for `sys.setswitchinterval`: the event loop's wait whenever it wakes up

P = ParamSpec("P")
T = TypeVar("T")

_thread = system.pool(1, "run_in_thread")


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns the result of `function`, which runs in the thread if the body of the current request
    is large. `function` must not wait for anything. Raises its exceptions.
    """
    if n_values(current_scope()) <= LARGE:
        return function(*args, **kwargs)
    current = copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, lambda: current.run(function, *args, **kwargs))
