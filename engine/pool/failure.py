"""Failed attempts to load a model, so that not every request tries it again at once."""

import math
import time
from dataclasses import dataclass

from specllama.engine.errors import EngineError, unavailable
from specllama.engine.pool.restarts import BACKOFF
from specllama.engine.pool.supervisor import Supervisor
from specllama.engine.wire.commands import is_illegal_instruction


@dataclass(frozen=True)
class Failure:
    """The last attempts to load a model, all of which failed."""

    text: str
    exit_code: int | None
    n_times: int  # in a row
    until: float  # when requests may try again, of time.monotonic()

    @classmethod
    def of(cls, supervisor: Supervisor, before: "Failure | None") -> "Failure":
        """The supervisor has just failed, after `before`. After the first time the next request
        may try again at once; no request tries again what this processor can't do."""
        n_times = before.n_times if before else 0
        until = time.monotonic() + BACKOFF[min(n_times, len(BACKOFF) - 1)]
        if is_illegal_instruction(supervisor.exit_code):
            until = math.inf
        return cls(supervisor.failure, supervisor.exit_code, n_times + 1, until)

    @classmethod
    def known(cls, text: str) -> "Failure | None":
        """The reason why a model can't be loaded, if there is one. No request tries it again."""
        return cls(text, None, 1, math.inf) if text else None

    def check(self, name: str) -> None:
        """Raises `EngineError` (unavailable) if it is too early to try again."""
        if time.monotonic() < self.until:
            raise _error(name, self.text, self.exit_code)


def check_not_failed(name: str, supervisor: Supervisor) -> None:
    """Raises `EngineError` (unavailable) if the model could not be loaded."""
    if supervisor.failure and supervisor.state in ("failed", "stopped"):
        raise _error(name, supervisor.failure, supervisor.exit_code)


def _error(name: str, failure: str, exit_code: int | None) -> EngineError:
    how = "" if exit_code is None else f" (exit code {exit_code})"
    return unavailable(f"the model {name!r} could not be loaded: {failure}{how}")
