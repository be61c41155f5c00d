"""Models that could not be loaded lately, so that not every request tries it again at once."""

import math
import time
from dataclasses import dataclass

from engine.errors import EngineError, unavailable
from engine.pool.restarts import BACKOFF
from engine.pool.supervisor import Supervisor
from engine.processes.exits import is_illegal_instruction


@dataclass(frozen=True)
class Failure:
    """How the last attempts to load a model ended."""

    text: str
    exit_code: int | None
    n_times: int  # in a row
    until: float  # when requests may try again, of time.monotonic()


class LoadFailures:
    """By the models' names."""

    def __init__(self) -> None:
        self._failures: dict[str, Failure] = {}

    def get(self, name: str) -> Failure | None:
        return self._failures.get(name)

    def check(self, name: str) -> None:
        """Raises `EngineError` (unavailable) if it is too early to try again."""
        failure = self._failures.get(name)
        if failure is not None and time.monotonic() < failure.until:
            raise _error(name, failure.text, failure.exit_code)

    def add(self, name: str, supervisor: Supervisor) -> None:
        """It has just failed. After the first time the next request may try again at once; no
        request tries again what this processor can't do."""
        before = self._failures.get(name)
        n_times = before.n_times if before else 0
        until = time.monotonic() + BACKOFF[min(n_times, len(BACKOFF) - 1)]
        if is_illegal_instruction(supervisor.exit_code):
            until = math.inf
        self._failures[name] = Failure(supervisor.failure, supervisor.exit_code, n_times + 1, until)

    def forget(self, name: str) -> None:
        """It has been loaded."""
        self._failures.pop(name, None)


def check_not_failed(name: str, supervisor: Supervisor) -> None:
    """Raises `EngineError` (unavailable) if the model could not be loaded."""
    if supervisor.failure and supervisor.state in ("failed", "stopped"):
        raise _error(name, supervisor.failure, supervisor.exit_code)


def _error(name: str, failure: str, exit_code: int | None) -> EngineError:
    how = "" if exit_code is None else f" (exit code {exit_code})"
    return unavailable(f"the model {name!r} could not be loaded: {failure}{how}")
