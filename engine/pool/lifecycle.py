"""The states of one model's engine, and the table of the transitions between them."""

from collections.abc import Mapping
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
    "failed",  # it can't be loaded; `engine.pool.restarts` says whether it is tried again
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
