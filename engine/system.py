"""Threads, synchronization, and the clock, for the server and the engine process.

A simulation replaces the names of this module, so they are used as `system.now()`, and never
imported one by one. `asyncio` is another such interface: its event loop has the server's timers.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent import futures
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, NoReturn

__all__ = [
    "ANY",
    "KILL",
    "Condition",
    "Event",
    "Executor",
    "Future",
    "Lock",
    "SimpleQueue",
    "call_later",
    "kill_group",
    "leave",
    "now",
    "pool",
    "processor_seconds",
    "send_signal",
    "start_thread",
    "wait",
]

Condition = threading.Condition
Event = threading.Event
Lock = threading.Lock
Executor = futures.Executor
Future = futures.Future

now = time.perf_counter
"""A monotonic clock in seconds, for durations and deadlines."""
processor_seconds = time.thread_time
"""Seconds of CPU time that this thread has used."""

ANY: Final = futures.FIRST_COMPLETED
KILL: Final[int] = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Starts a thread that runs `run`, and doesn't keep the process from ending."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def pool(n_threads: int, name: str) -> futures.Executor:
    """Returns an executor of at most `n_threads` threads, which it starts on demand."""
    return futures.ThreadPoolExecutor(n_threads, thread_name_prefix=name)


def wait(
    awaited: Collection[futures.Future[Any]],
    seconds: float,
    until: str = futures.ALL_COMPLETED,
) -> None:
    """Waits until all futures (or, with `ANY`, one of them) are done, at most `seconds`."""
    futures.wait(awaited, seconds, until)


def call_later(seconds: float, call: Callable[[], object]) -> threading.Timer:
    """Starts a timer that runs `call` on a separate thread after `seconds`, unless it is
    cancelled."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def leave(code: int = 0) -> NoReturn:
    """Ends this process at once, regardless of its other threads."""
    sys.stderr.flush()
    os._exit(code)


def kill_group(pid: int) -> None:
    """Kills the process group of the process `pid`, or only that process where there are no groups;
    has no effect if it has ended."""
    with suppress(OSError):
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, signal.SIGKILL)


def send_signal(pid: int, number: int) -> None:
    """Sends a signal to another process; has no effect if that has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
