"""Replaces the functions of `specllama.engine.system` for the tasks of a `World` instead of
threads."""

from collections import deque
from collections.abc import Callable, Collection
from concurrent import futures
from functools import partial
from queue import Empty
from typing import Any, Generic, TypeVar

from tests.simulation.world import Task, World

SHARE = 0.1
"""A thread's share of a processor while it computes. With a larger share, a constraint would exceed
its limit at random."""

T = TypeVar("T")


class _Waiting:
    """The tasks that wait for one thing, the longest-waiting one first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: deque[Task] = deque()

    def wait(self, seconds: float | None = None) -> bool:
        """Suspends the current task. Returns whether it was woken within `seconds`."""
        task = self._world.current
        self._tasks.append(task)
        was_woken = self._world.wait(seconds)
        if not was_woken and task in self._tasks:
            self._tasks.remove(task)
        return was_woken

    def wake(self, n: int | None = None) -> int:
        """Wakes `n` of the tasks, or all. Returns their number."""
        n_woken = 0
        while self._tasks and (n is None or n_woken < n):
            task = self._tasks.popleft()
            n_woken += task.is_waiting  # otherwise its time has just run out
            self._world.wake(task)
        return n_woken


class SimulatedLock:
    """Replaces `threading.RLock`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Task | None = None
        self._depth = 0
        self._waiting = _Waiting(world)

    def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
        world = self._world
        world.pause()
        while self._owner not in (None, world.current):
            if not blocking or not self._waiting.wait(None if timeout < 0 else timeout):
                return False
        self._owner = world.current
        self._depth += 1
        return True

    def release(self) -> None:
        assert self._owner is self._world.current, "another task holds this lock"
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._waiting.wake(1)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class SimulatedCondition(SimulatedLock):
    """Replaces `threading.Condition`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._listening = _Waiting(world)

    def wait(self, timeout: float | None = None) -> bool:
        depth, self._depth = self._depth, 1
        self.release()
        was_woken = self._listening.wait(timeout)
        self.acquire()
        self._depth = depth
        return was_woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        end = None if timeout is None else self._world.now + timeout
        while not (result := predicate()):
            seconds = None if end is None else end - self._world.now
            if seconds is not None and seconds <= 0:
                break
            self.wait(seconds)
        return result

    def notify(self, n: int = 1) -> None:
        self._listening.wake(n)

    def notify_all(self) -> None:
        self._listening.wake()


class SimulatedEvent:
    """Replaces `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting = _Waiting(world)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiting.wake()
        self._world.pause()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiting.wait(timeout)
        return self._is_set


class SimulatedQueue(Generic[T]):
    """Replaces `queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[T] = deque()
        self._waiting = _Waiting(world)

    def put(self, item: T) -> None:
        self._items.append(item)
        self._waiting.wake(1)
        self._world.pause()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        world = self._world
        end = None if timeout is None else world.now + timeout
        while not self._items:
            seconds = None if end is None else end - world.now
            if not block or (seconds is not None and seconds <= 0):
                raise Empty
            self._waiting.wait(seconds)
        return self._items.popleft()

    def get_nowait(self) -> T:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class SimulatedFuture(futures.Future[T]):
    """Replaces `concurrent.futures.Future`. All waiting tasks share its condition."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._condition: Any = SimulatedCondition(world)


class SimulatedPool(futures.Executor):
    """Replaces `concurrent.futures.ThreadPoolExecutor`."""

    def __init__(self, world: World, n_threads: int, name: str) -> None:
        self._world = world
        self._n_threads = n_threads
        self._name = name
        self._jobs: deque[tuple[futures.Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[Task] = []
        self._idle = _Waiting(world)
        self._is_closed = False

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> "futures.Future[T]":
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: futures.Future[T] = SimulatedFuture(self._world)
        self._jobs.append((future, partial(work, *args, **kwargs)))
        if not self._idle.wake(1) and len(self._threads) < self._n_threads:
            self._threads.append(self._world.start(self._run, self._name))
        self._world.pause()
        return future

    def _run(self) -> None:
        world = self._world
        while True:
            while not self._jobs:
                if self._is_closed:
                    return
                self._idle.wait()
            future, work = self._jobs.popleft()
            world.pause()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closed = True
        if cancel_futures:
            while self._jobs:
                self._jobs.popleft()[0].cancel()
        self._idle.wake()
        if wait:
            for task in self._threads:
                self._world.join(task)


class _Thread:
    def __init__(self, world: World, run: Callable[[], None], name: str) -> None:
        self._world = world
        self._task = world.start(run, name)

    def join(self, timeout: float | None = None) -> None:
        self._world.join(self._task, timeout)


class _Timer:
    def __init__(self, world: World, seconds: float, call: Callable[[], object]) -> None:
        self._world = world
        self._seconds = seconds
        self._call = call
        self._task = world.start(self._run, "timer")
        self._is_cancelled = False

    def _run(self) -> None:
        if not self._is_cancelled:
            self._world.wait(self._seconds)
        if not self._is_cancelled:
            self._call()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._world.wake(self._task)


def _wait(
    world: World,
    awaited: Collection[futures.Future[Any]],
    seconds: float | None = None,
    until: str = futures.ALL_COMPLETED,
) -> None:
    end = None if seconds is None else world.now + seconds
    enough = any if until == futures.FIRST_COMPLETED else all
    event = SimulatedEvent(world)
    for future in awaited:
        future.add_done_callback(lambda _: event.set())
    while True:
        event.clear()
        if enough(future.done() for future in awaited):
            return
        left = None if end is None else end - world.now
        if left is not None and left <= 0:
            return
        event.wait(left)


def system_of(world: World) -> dict[str, Any]:
    """Returns replacements for the names of `specllama.engine.system`, for the tasks of `world`."""
    return {
        "now": world.look,
        "processor_seconds": lambda: SHARE * world.look(),
        "Lock": partial(SimulatedLock, world),
        "Condition": partial(SimulatedCondition, world),
        "Event": partial(SimulatedEvent, world),
        "SimpleQueue": partial(SimulatedQueue, world),
        "Future": partial(SimulatedFuture, world),
        "pool": partial(SimulatedPool, world),
        "wait": partial(_wait, world),
        "start_thread": partial(_Thread, world),
        "call_later": partial(_Timer, world),
        "leave": world.leave,
    }
