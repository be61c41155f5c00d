"""The states of one model's engine, and the table of the transitions between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

State = Literal[
    "downloading",  # its files
    "downloaded",  # nobody has asked for more
    "loading",  # for the first time
    "ready",
    "dozing",  # nobody needs it: the process is being ended
    "sleeping",  # no process and no memory, until somebody needs it
    "waking",  # loading again, after that
    "restarting",  # after a crash
    "failed",  # it can't be loaded; `engine.models.lifecycle` says whether it is tried again
    "draining",  # it is being stopped; what runs may finish
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
"""Every state but the last can become `failed`: the supervisor itself may have an error."""

SERVING: Final[frozenset[State]] = frozenset({"ready", "draining"})
"""There is an engine that takes requests."""
RETURNING: Final[frozenset[State]] = frozenset({"dozing", "sleeping", "waking", "restarting"})
"""There is none now, and there will be one for those who wait."""
LOADING: Final[frozenset[State]] = frozenset({"loading", "waking", "restarting"})
"""A process loads the model, or is about to."""


class TransitionError(RuntimeError):
    """The table has no such transition."""


class Lifecycle:
    """The state that one engine is in."""

    def __init__(self, state: State) -> None:
        self._state: State = state

    @property
    def state(self) -> State:
        return self._state

    def enter(self, state: State) -> bool:
        """Make the transition to `state`; False once it has been stopped, where what comes late
        changes nothing. Raises `TransitionError`."""
        if self._state == "stopped":
            return False
        if state not in TRANSITIONS[self._state]:
            raise TransitionError(f"an engine that is {self._state} can't become {state}")
        self._state = state
        return True


# ---- Rules for replacing an engine process that has ended, without any clock.


BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # s before the n-th restart in a row
STABLE_SECONDS = 5.0  # in service: who has come so far was not a failing process


@dataclass(frozen=True)
class ProcessLife:
    """One engine process, from its start to its end."""

    ready: bool = False  # the model was loaded
    served: bool = False  # and at least one request evaluated to its end
    seconds: float = 0.0  # in service
    illegal: bool = False  # ended by an instruction that the processor does not have

    @property
    def proved(self) -> bool:
        """The process did what it is there for: its end was an accident."""
        return self.ready and (self.served or self.seconds >= STABLE_SECONDS)


class Restarts:
    """How long to wait for the next process of a model, by how the last ones lived.

    A process that served is replaced at once, however often that happens. Those that die before
    they serve come back ever more slowly, and not at all where another try would end in the same
    way: a model that was never loaded, an illegal instruction while loading, or twice in a row.
    """

    def __init__(self) -> None:
        self._ever_ready = False
        self._n_failures = 0  # in a row
        self._was_illegal = False  # how the last one ended

    def after(self, life: ProcessLife) -> float | None:
        """Seconds until the next process is to be started; None for never. Called once for each
        process, in their order."""
        hopeless = life.illegal and not life.proved and (self._was_illegal or not life.ready)
        self._was_illegal = life.illegal
        self._ever_ready |= life.ready
        if hopeless or not self._ever_ready:
            return None
        if life.proved:
            self._n_failures = 0
            return 0.0
        wait = BACKOFF[min(self._n_failures, len(BACKOFF) - 1)]
        self._n_failures += 1
        return wait
