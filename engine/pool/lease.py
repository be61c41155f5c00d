"""The right to use a model for a while."""

from collections.abc import Callable
from types import TracebackType

from specllama.engine.catalog.entry import Entry
from specllama.engine.pool.client import EngineClient
from specllama.engine.pool.supervisor import Supervisor


class Lease:
    """Keeps a model loaded and awake until `release`. It is a context manager as well."""

    def __init__(
        self, entry: Entry, supervisor: Supervisor, on_release: Callable[[], None]
    ) -> None:
        self.entry = entry
        self.supervisor = supervisor
        self._on_release: Callable[[], None] | None = on_release

    async def engine(self) -> EngineClient:
        """As `Supervisor.engine`."""
        return await self.supervisor.engine()

    def release(self) -> None:
        """Idempotent."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
