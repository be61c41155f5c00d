"""Keeps models in memory for some time after their requests (`keep_alive`)."""

import asyncio
from collections.abc import Callable

from specllama.engine import system
from specllama.engine.models.residency import Residency
from specllama.engine.models.supervisor import Supervisor


class Keeping:
    """A loaded model that stays in memory, and awake, until `end` or for `seconds`. Then `on_end`
    is called."""

    def __init__(
        self,
        residency: Residency,
        name: str,
        supervisor: Supervisor,
        seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        supervisor.acquire()
        self._residency = residency
        self._name = name
        self._supervisor: Supervisor | None = supervisor
        self._until = system.now() + seconds
        self._on_end = on_end
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    @property
    def seconds_left(self) -> float:
        """The remaining time; 0 after its end."""
        return max(self._until - system.now(), 0.0) if self._supervisor else 0.0

    def end(self) -> None:
        """Ends it without a call of `on_end`. Further calls have no effect."""
        self._timer.cancel()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            self._residency.end_keeping(self._name)
            supervisor.release()

    def _expire(self) -> None:
        self.end()
        self._on_end()
