"""The client of the trial processes (`engine.helpers.trial`), which compile the source of a
constraint with limits before the engine process does.

A lane tries one source after the other, in the same process until that has to be ended. It blocks
the calling thread, outside of the GIL. Every source enters the first lane, whose limit is so low
that no source delays others much. A source that exceeds it moves on to the next lane, with other
costly ones. Each lane alternates between its newest and its oldest source.
"""

import os
import signal
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from specllama.engine import system
from specllama.engine.grammars.compiling import DeepThread, GrammarSource
from specllama.engine.helpers.trial.trial_jobs import (
    Answer,
    Costly,
    TrialJob,
    TrialRefused,
    TrialTokens,
    Tried,
    Unknown,
    answer_decoder,
)
from specllama.engine.wire.commands import environment, trial_command
from specllama.engine.wire.framing import FrameError, FrameReader, Started, frame
from specllama.engine.wire.startup import FORKS
from specllama.engine.worker.constraints.vocabulary import Vocabulary

K = TypeVar("K")
V = TypeVar("V")


class FairQueue(Generic[K, V]):
    """A queue of values with keys, from which the newest and the oldest are taken alternately.

    The last value added waits for at most one other value, if no more are added. As every second
    one taken is the oldest, a value with n values before it waits for at most 2n + 1 others.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[K, V] = OrderedDict()
        self._newest = True  # the newest is taken next

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: K, value: V) -> None:
        self._waiting[key] = value

    def take(self) -> V | None:
        """Removes and returns the next value; None if the queue is empty."""
        if not self._waiting:
            return None
        _, value = self._waiting.popitem(last=self._newest)
        self._newest = not self._newest
        return value

    def remove(self, key: K) -> bool:
        """Removes the value of `key`. Returns False if there is none."""
        if key not in self._waiting:
            return False
        del self._waiting[key]
        return True


MEMORY_LIMIT: Final = 1 << 30  # bytes of address space, including the interpreter
CLOCK_FACTOR: Final = 20
"""The actual limit is CPU time. A process that takes this many times as much wall-clock time for a
job is killed, in case it is stuck."""
CLOCK_LEAST: Final = 10.0
"""Minimum of the wall-clock limit in seconds: the first job includes the start of the process."""
MAX_VOCABULARIES: Final = 4  # that one process can hold
READ_SIZE: Final = 1 << 16


class TooCostlyError(Exception):
    """A trial exceeded its limit of work or memory, or ended its process."""


class AbandonedError(Exception):
    """The trial's result is no longer needed."""


class Lane:
    """Trials of at most `seconds` of CPU time each."""

    def __init__(self, seconds: float, *, memory: int = MEMORY_LIMIT, lasts: bool = True) -> None:
        """If `lasts` is False, each source gets a new process."""
        self._seconds = seconds
        self._memory = memory
        self._lasts = lasts
        self._lock = system.Lock()
        self._process: TrialProcess | None = None
        self._present: object = None  # of the running trial
        self._closed = False

    def run(
        self,
        owner: object,
        source: GrammarSource,
        vocabulary: Vocabulary,
        token_id: Callable[[str], int | None],
        *,
        leniently: bool = False,
    ) -> Tried | TrialRefused:
        """Try `source`. `token_id` is as in `gbnf.to_lark`, `leniently` as in
        `relaxing.compilable`; `owner` identifies the trial for `abandon`.

        Raises TooCostlyError, AbandonedError, and OSError if no process can be started.
        """
        fit, answer = False, None
        try:
            answer = self._ask(
                self._take(owner, vocabulary), source, vocabulary, token_id, leniently
            )
            # With forks, a copy of the process has done the job, so the process itself is unused.
            fit = FORKS or not isinstance(answer, Costly)
        except EndedError:
            pass
        finally:
            is_abandoned = self._present is not owner or self._closed
            self._release(fit=fit and not is_abandoned)
        if answer is None or isinstance(answer, Costly):
            raise AbandonedError if is_abandoned else TooCostlyError
        return answer

    def _ask(
        self,
        process: "TrialProcess",
        source: GrammarSource,
        vocabulary: Vocabulary,
        token_id: Callable[[str], int | None],
        leniently: bool,
    ) -> Tried | TrialRefused | Costly:
        """Send the job; if it needs token ids, send it again with these. Raises EndedError."""
        number, seconds = vocabulary.number, self._seconds
        job = TrialJob(source, number, seconds, leniently=leniently)
        answer = process.ask(job, vocabulary)
        if isinstance(answer, Unknown):
            ids = {name: token_id(name) for name in answer.names}
            job = TrialJob(source, number, seconds, ids=ids, leniently=leniently)
            answer = process.ask(job, vocabulary)
        assert not isinstance(answer, Unknown)
        return answer

    def abandon(self, owner: object) -> None:
        """End the trial for `owner`, if it is running."""
        with self._lock:
            if self._present is owner and self._process is not None:
                self._present = None
                self._process.kill()

    @property
    def pid(self) -> int | None:
        """The id of the current process."""
        with self._lock:
            return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """End the process, even in the middle of a trial."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                if self._present is None:
                    self._process.close()

    def _take(self, owner: object, vocabulary: Vocabulary) -> "TrialProcess":
        with self._lock:
            if self._closed:
                raise AbandonedError
            self._present = owner
            if self._process is not None and not self._process.takes(vocabulary):
                self._discard()
            if self._process is None:
                self._process = TrialProcess(self._memory, self._seconds)
            return self._process

    def _release(self, *, fit: bool) -> None:
        with self._lock:
            self._present = None
            if not (fit and self._lasts):
                self._discard()

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None


class EndedError(Exception):
    """The trial process ended without an answer."""


class TrialProcess:
    """One process, with one job at a time."""

    def __init__(self, memory: int, seconds: float) -> None:
        """Raises OSError."""
        self._clock = max(CLOCK_LEAST, CLOCK_FACTOR * seconds)
        self._killing = system.Lock()
        self._known: set[int] = set()  # numbers of the vocabularies that it has
        self._frames: FrameReader[Started | Answer] = FrameReader(answer_decoder)
        self._process = subprocess.Popen(
            trial_command(memory, self._clock),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Rust reports a lack of memory there, at any length
            env=environment(),
            bufsize=0,
            process_group=0 if FORKS else None,  # includes its forked copies
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def takes(self, vocabulary: Vocabulary) -> bool:
        return vocabulary.number in self._known or len(self._known) < MAX_VOCABULARIES

    def ask(self, job: TrialJob, vocabulary: Vocabulary) -> Answer:
        """The answer to `job`; sends `vocabulary` before its first job. Raises EndedError."""
        if vocabulary.number not in self._known:
            self._known.add(vocabulary.number)
            tokens = TrialTokens(vocabulary.lexemes, vocabulary.eog)
            job = msgspec.structs.replace(job, tokens=tokens)
        clock = system.call_later(self._clock, self.kill)
        try:
            return self._exchange(frame(job))
        except (OSError, FrameError):
            raise EndedError from None
        finally:
            clock.cancel()

    def _exchange(self, job: bytes) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = memoryview(job)
        while data:
            data = data[os.write(self._process.stdin.fileno(), data) :]
        while received := os.read(self._process.stdout.fileno(), READ_SIZE):
            for answer in self._frames.feed(received):
                if not isinstance(answer, Started):
                    return answer
        raise EndedError

    def kill(self) -> None:
        """End the process and its copy. Safe to call from any thread."""
        with self._killing:
            if self._process.returncode is None:  # not reaped, so the id is still its own
                if FORKS:
                    with suppress(OSError):  # macOS refuses this for groups that have ended
                        os.killpg(self._process.pid, signal.SIGKILL)
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        """Close the pipes of the ended process."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


T = TypeVar("T")

SECONDS: Final = (0.05, 0.5, 5.0)
"""CPU time limit of a source in each lane. Typical ones take some milliseconds."""
MAX_WAITING: Final = 32  # in each lane except the first


class BusyError(Exception):
    """Too many costly sources are already waiting."""


class Entrant(Protocol):
    """A source in the lanes. It ends in one of two ways: `attempt` succeeds, or `fail` is
    called."""

    def attempt(self, lane: Lane, *, is_last: bool) -> None:
        """Raises TooCostlyError if it needs the next lane; any other exception is passed to
        `fail`."""

    def fail(self, error: Exception) -> None:
        """Called with the error; may be BusyError."""


class TrialLanes:
    """Lanes with increasing limits of CPU time, `seconds`. Thread-safe."""

    def __init__(
        self, seconds: Sequence[float] = SECONDS, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._max_waiting = max_waiting
        # The last lane is used too seldom to keep a process for it.
        self._trials = [Lane(each, lasts=each != seconds[-1]) for each in seconds]
        self._queues = [_Queue() for _ in seconds]

    def submit(self, work: Callable[[], T]) -> system.Future[T]:
        """Run `work`, which must be cheap, in its turn in the first lane."""
        future: system.Future[T] = system.Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._queues[0].put(future, run)
        return future

    def enter(self, entrant: Entrant) -> None:
        self._enter(entrant, 0)

    def withdraw(self, entrant: Entrant) -> bool:
        """Withdraw `entrant`. Returns True if it was still waiting: then it is neither tried nor
        failed."""
        if any(queue.remove(entrant) for queue in self._queues):
            return True
        # Not in the first lane: it ends soon there, and killing the process costs a start.
        for trials in self._trials[1:]:
            trials.abandon(entrant)
        return False

    def close(self) -> None:
        """End the running trials, and wait for the threads."""
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
    """A thread with a queue of work."""

    def __init__(self) -> None:
        self._thread = DeepThread()
        self._lock = system.Lock()
        self._turns: FairQueue[object, Callable[[], None]] = FairQueue()

    def put(self, key: object, work: Callable[[], None], most: int | None = None) -> bool:
        """Returns False if `most` entries are already waiting."""
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
