"""The way of a source through its trials.

Every source enters the first lane, where each may take so little that it hardly delays another.
What takes more goes on to the next lane, where it waits for its like. In each of them the newest
and the oldest have their turns.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from specllama.engine.grammars.compiling import DeepThread
from specllama.engine.worker.constraints.trial.parent import Lane, TooCostlyError
from specllama.engine.worker.constraints.turns import Turns

T = TypeVar("T")

SECONDS: Final = (0.05, 0.5, 5.0)
"""The processor's time that a source may take in each lane. Usual ones take some milliseconds."""
MAX_WAITING: Final = 32  # sources in each lane but the first


class BusyError(Exception):
    """Too many costly sources wait already."""


class Entrant(Protocol):
    """A source on its way, which has one end: `attempt` goes well, or there is a call of `fail`."""

    def attempt(self, lane: Lane, *, is_last: bool) -> None:
        """Raises TooCostlyError if that takes another lane, and whatever else is for `fail`."""

    def fail(self, error: Exception) -> None:
        """Takes BusyError, too."""


class Lanes:
    """Lanes of which each gives more `seconds` than the one before. Safe to use from any thread."""

    def __init__(
        self, seconds: Sequence[float] = SECONDS, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._max_waiting = max_waiting
        # So little comes to the last lane that no process is kept for it.
        self._trials = [Lane(each, lasts=each != seconds[-1]) for each in seconds]
        self._queues = [_Queue() for _ in seconds]

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do `work`, which is cheap, when it has its turn in the first lane."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._queues[0].put(future, run)
        return future

    def enter(self, entrant: Entrant) -> None:
        self._enter(entrant, 0)

    def leave(self, entrant: Entrant) -> bool:
        """Nobody wants `entrant` any more. True if it waited: it is neither tried nor failed."""
        if any(queue.remove(entrant) for queue in self._queues):
            return True
        # In the first lane it ends soon, and spares the next one the start of a process.
        for trials in self._trials[1:]:
            trials.abandon(entrant)
        return False

    def close(self) -> None:
        """End what runs, and wait for the threads."""
        for trials in self._trials:
            trials.close()
        for queue in self._queues:
            queue.close()

    def _enter(self, entrant: Entrant, number: int) -> None:
        most = self._max_waiting if number else None
        if not self._queues[number].put(entrant, lambda: self._attempt(entrant, number), most):
            entrant.fail(BusyError())

    def _attempt(self, entrant: Entrant, number: int) -> None:
        is_last = number == len(self._trials) - 1
        try:
            entrant.attempt(self._trials[number], is_last=is_last)
        except TooCostlyError as error:
            if is_last:
                entrant.fail(error)
            else:
                self._enter(entrant, number + 1)
        except Exception as error:
            entrant.fail(error)


class _Queue:
    """A thread that does what waits for it."""

    def __init__(self) -> None:
        self._thread = DeepThread()
        self._lock = threading.Lock()
        self._turns: Turns[object, Callable[[], None]] = Turns()

    def put(self, key: object, work: Callable[[], None], most: int | None = None) -> bool:
        """False if `most` wait already."""
        with self._lock:
            if most is not None and len(self._turns) >= most:
                return False
            self._turns.put(key, work)
        self._thread.submit(self._next)
        return True

    def remove(self, key: object) -> bool:
        with self._lock:
            return self._turns.remove(key)

    def close(self) -> None:
        self._thread.close()

    def _next(self) -> None:
        with self._lock:
            work = self._turns.take()
        if work is not None:
            work()
