"""Rules for replacing an engine process that has ended, without any clock."""

from dataclasses import dataclass

BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # s before the n-th restart in a row
STABLE_SECONDS = 5.0  # in service: who has come so far was not a failing process


@dataclass(frozen=True)
class Life:
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

    def after(self, life: Life) -> float | None:
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
