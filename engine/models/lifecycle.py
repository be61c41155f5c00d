"""The states of one model's engine, and the transitions between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

State = Literal[
    "downloading",  # its files
    "downloaded",  # no request to load it yet
    "loading",  # for the first time
    "ready",
    "dozing",  # idle: the process is being ended
    "sleeping",  # no process and no memory, until the next request
    "waking",  # loading again after sleeping
    "restarting",  # after a crash
    "failed",  # it can't be loaded; see `Restarts` for retries
    "draining",  # it is being stopped; running requests may finish
    "stopped",
]

STATES: Final[tuple[State, ...]] = get_args(State)
INITIAL: Final[frozenset[State]] = frozenset({"downloading", "loading"})

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "downloading": frozenset({"downloaded", "failed", "stopped"}),
    "downloaded": frozenset({"loading", "failed", "stopped"}),
    "loading": frozenset({"ready", "failed", "stopped"}),
    "ready": frozenset({"dozing", "restarting", "failed", "draining", "stopped"}),
    "dozing": frozenset({"sleeping", "waking", "failed", "stopped"}),
    "sleeping": frozenset({"waking", "failed", "stopped"}),
    "waking": frozenset({"ready", "restarting", "failed", "stopped"}),
    "restarting": frozenset({"ready", "failed", "stopped"}),
    "failed": frozenset({"ready", "failed", "stopped"}),
    "draining": frozenset({"failed", "stopped"}),
    "stopped": frozenset(),
}
"""Every state except the last one can become `failed`, for example by an error of the
supervisor."""

SERVING: Final[frozenset[State]] = frozenset({"ready", "draining"})
"""States with an engine that accepts requests."""
RETURNING: Final[frozenset[State]] = frozenset({"dozing", "sleeping", "waking", "restarting"})
"""States without an engine, for which requests wait, as it will return."""
LOADING: Final[frozenset[State]] = frozenset({"loading", "waking", "restarting"})
"""States in which a process loads the model, or is about to."""


class TransitionError(RuntimeError):
    """The transition is not in the table."""


class Lifecycle:
    """The current state of one engine."""

    def __init__(self, state: State) -> None:
        self._state: State = state

    @property
    def state(self) -> State:
        return self._state

    def enter(self, state: State) -> bool:
        """Changes the state to `state`. Returns False, without a change, after the engine was
        stopped. Raises `TransitionError`."""
        if self._state == "stopped":
            return False
        if state not in TRANSITIONS[self._state]:
            raise TransitionError(f"an engine that is {self._state} can't become {state}")
        self._state = state
        return True


# ---- Rules for replacing an engine process that has ended. They use no clock.


BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # s before the n-th restart in a row
STABLE_SECONDS = 5.0  # in service, after which a process counts as working


@dataclass(frozen=True)
class ProcessLife:
    """A summary of one ended engine process."""

    ready: bool = False  # the model was loaded
    served: bool = False  # it has completed at least one request
    seconds: float = 0.0  # in service
    illegal: bool = False  # ended by an instruction that the processor doesn't support

    @property
    def proved(self) -> bool:
        """True if the process worked, so its end was an accident."""
        return self.ready and (self.served or self.seconds >= STABLE_SECONDS)


class Restarts:
    """Computes the delay before a model's next process from the ends of the previous ones.

    A process that worked is replaced at once, however often it ends. Processes that end before they
    work are replaced with increasing delays. There is no replacement if it would fail in the same
    way: the model was never loaded, or an illegal instruction occurred while loading or twice in a
    row.
    """

    def __init__(self) -> None:
        self._ever_ready = False
        self._n_failures = 0  # in a row
        self._was_illegal = False  # the last process ended by an illegal instruction

    def after(self, life: ProcessLife) -> float | None:
        """Returns the seconds until the start of the next process; None for never. Called once for
        each process, in their order."""
        would_repeat = life.illegal and not life.proved and (self._was_illegal or not life.ready)
        self._was_illegal = life.illegal
        self._ever_ready |= life.ready
        if would_repeat or not self._ever_ready:
            return None
        if life.proved:
            self._n_failures = 0
            return 0.0
        wait = BACKOFF[min(self._n_failures, len(BACKOFF) - 1)]
        self._n_failures += 1
        return wait
