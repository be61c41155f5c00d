"""Conversions of large bodies, in a thread.

They are plain Python over many values, so the interpreter lets others have their turn in between;
there is one thread, so that the event loop has at least every second one.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, ParamSpec, TypeVar

from specllama.engine import system
from specllama.handlers.http.bodies import LARGE, n_values
from specllama.handlers.http.current import current_scope

TURN: Final = 0.001  # s, `sys.setswitchinterval`: the loop waits as long whenever it wakes up

P = ParamSpec("P")
T = TypeVar("T")

_thread = system.pool(1, "run_in_thread")


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `function`, in the thread if the body of the current request is large.

    Raises what `function` does. It must not wait for anything.
    """
    if n_values(current_scope()) <= LARGE:
        return function(*args, **kwargs)
    current = copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, lambda: current.run(function, *args, **kwargs))
