"""Tasks that run one at a time, and their clock. A seed decides which task continues.

A task simulates a thread or an event loop. It runs until it waits for something, or calls one of
the replacements in `tests.simulation.threads` and `tests.simulation.processes`.
"""

import heapq
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

TICK = 1e-6
"""Simulated seconds that each look at the clock takes."""
STOPPED = -1
"""Replaces the turn of a task whose process was stopped."""
LONGEST = 1e6
"""The simulated time in seconds after which a waiting history counts as stuck."""
LIMIT, AGAIN = 120, 5
"""The real seconds that a history may take, and the interval of further attempts to end it."""


class StuckError(AssertionError):
    """All tasks wait for each other, or a task runs for ever without waiting."""


@contextmanager
def limited() -> Iterator[None]:
    """Raises `StuckError` in a history that takes longer than `LIMIT`, and again every `AGAIN`
    seconds if the running task catches it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise StuckError(f"the history has taken {LIMIT} s")

    before = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, LIMIT, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


@dataclass(eq=False)
class Process:
    """A simulated process: its tasks end together."""

    name: str
    returncode: int | None = None
    stopped_until: float = 0.0
    """The time until which its tasks are stopped, as with SIGSTOP."""
    on_end: list[Callable[[], None]] = field(default_factory=list)

    def end(self, code: int) -> None:
        """Ends the process: its tasks don't continue. Has no effect on a process that has ended."""
        if self.returncode is None:
            self.returncode = code
            for call in self.on_end:
                call()


@dataclass(eq=False)
class Task:
    """A thread of `process`. `turn` counts how often it was woken."""

    name: str
    process: Process
    greenlet: greenlet
    turn: int = 0
    is_waiting: bool = False
    was_woken: bool = False
    is_done: bool = False
    ended: list["Task"] = field(default_factory=list)
    """The tasks that wait for the end of this one."""


class World:
    """Everything that happens in one history. Random choices come from `seed` alone."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.events: Counter[str] = Counter()
        """The number of events, by kind."""
        self.server = Process("server")
        self._hub = getcurrent()
        self._ready: list[Task] = []
        self._timed: list[tuple[float, int, Task, int]] = []
        self._n_timed = 0
        self._alive: set[Task] = set()
        self._is_over = False
        self._current: Task | None = None
        self._haste = self.random.choice([0.0, 0.1, 0.5])
        """The probability that a task which could continue lets another one go first."""

    def happens(self, kind: str, n: int = 1) -> None:
        """Counts an event; every event of `events.SOMETIMES` has to occur in some history."""
        self.events[kind] += n

    # ---- the clock -----------------------------------------------------------------------

    def look(self) -> float:
        """Returns the time. Each look advances the clock, so that no busy loop runs for ever."""
        self.now += TICK
        return self.now

    # ---- tasks ---------------------------------------------------------------------------

    @property
    def current(self) -> Task:
        assert self._current is not None
        return self._current

    def start(self, run: Callable[[], None], name: str, process: Process | None = None) -> Task:
        """Starts a task of `process`; the default is the current process."""
        process = process or self.current.process

        def body() -> None:
            try:
                run()
            except BaseException:
                if not self._is_over:  # otherwise `closing` has ended it anywhere
                    raise
            finally:
                task.is_done = True
                self._alive.discard(task)
                for other in task.ended:
                    self.wake(other)

        task = Task(name, process, greenlet(body, self._hub))
        self._alive.add(task)
        self._ready.append(task)
        return task

    def pause(self) -> None:
        """Sometimes lets another task go first."""
        if self._haste and self.random.random() < self._haste:
            self.yield_()

    def yield_(self) -> None:
        """Lets another ready task go first, if there is one."""
        task = self.current
        self._ready.append(task)
        self._switch(task)

    def sleep(self, seconds: float) -> None:
        """Suspends the current task for so many simulated seconds."""
        self.wait(max(0.0, seconds))

    def wait(self, seconds: float | None = None) -> bool:
        """Suspends the current task until it is woken, or for at most `seconds`. Returns whether it
        was woken."""
        task = self.current
        task.is_waiting = True
        if seconds is not None:
            self._n_timed += 1
            heapq.heappush(self._timed, (self.now + seconds, self._n_timed, task, task.turn))
        self._switch(task)
        return task.was_woken

    def wake(self, task: Task, *, by_clock: bool = False) -> None:
        """Makes `task` ready if it waits."""
        if task.is_waiting:
            task.is_waiting = False
            task.turn += 1
            task.was_woken = not by_clock
            self._ready.append(task)

    def join(self, task: Task, seconds: float | None = None) -> None:
        """Waits for the end of `task`."""
        if not task.is_done:
            task.ended.append(self.current)
            self.wait(seconds)

    def leave(self, code: int = 0) -> NoReturn:
        """Ends the current process."""
        self.current.process.end(code)
        self._hub.switch()
        raise GreenletExit

    def _switch(self, task: Task) -> None:
        if self._is_over:
            raise GreenletExit
        self._hub.switch()
        if self._is_over:
            raise GreenletExit

    # ---- running -------------------------------------------------------------------------

    def run(self, is_over: Callable[[], bool]) -> None:
        """Runs tasks until `is_over`. Raises `StuckError`, or the exception of a task."""
        while not is_over():
            self._go_on()

    def _go_on(self) -> None:
        while self._timed and self._timed[0][0] <= self.now:
            self._wake_first()
        while not self._ready:
            if not self._timed or self._timed[0][0] > LONGEST:
                raise StuckError(f"all tasks wait: {', '.join(sorted(self._waiting()))}")
            self.now = max(self.now, self._timed[0][0])
            self._wake_first()
        n = len(self._ready)
        i = self.random.randrange(n) if n > 1 else 0
        self._ready[i], self._ready[-1] = self._ready[-1], self._ready[i]
        task = self._ready.pop()
        if task.process.stopped_until > self.now:
            self._n_timed += 1
            entry = (task.process.stopped_until, self._n_timed, task, STOPPED)
            heapq.heappush(self._timed, entry)
        elif task.process.returncode is None or task.process is self.server:
            self._current = task
            task.greenlet.switch()

    def _wake_first(self) -> None:
        _, _, task, turn = heapq.heappop(self._timed)
        if turn == STOPPED:
            self._ready.append(task)
        elif task.turn == turn and task.process.returncode is None:
            self.wake(task, by_clock=True)

    def _waiting(self) -> Iterator[str]:
        for task in self._alive:
            if task.process.returncode is None:
                yield f"{task.process.name}/{task.name}"

    @contextmanager
    def closing(self) -> Iterator["World"]:
        """Ends the remaining tasks when the context is closed."""
        try:
            yield self
        finally:
            self._is_over = True
            for task in [*self._alive]:
                self._current = task
                task.greenlet.throw(GreenletExit)
