"""Work that goes on after its request has been answered."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from specllama.engine.errors import unavailable

MAX_JOBS = 1000
"""The most that may run or wait; a client that waits for its answer can't ask for so many."""


JobKey = tuple[str, str]
"""An owner, and an id."""


@dataclass(frozen=True)
class _Job:
    shown: dict[str, Any]
    task: asyncio.Task[None]


class Jobs:
    """Running work by its key, each with the document that is shown of it meanwhile. Whoever works
    keeps the result elsewhere; nothing here outlives the server."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}

    def check_room(self) -> None:
        """Raises EngineError (unavailable_error) if there are too many."""
        if len(self._jobs) >= MAX_JOBS:
            raise unavailable(f"there are {MAX_JOBS} responses in the background; try again later")

    def start(self, key: JobKey, shown: dict[str, Any], work: Coroutine[Any, Any, None]) -> None:
        """Begins with `work`, which may change `shown` and handles its own errors."""
        task = asyncio.create_task(work)
        self._jobs[key] = _Job(shown, task)
        task.add_done_callback(lambda _: self._jobs.pop(key, None))

    def shown(self, key: JobKey) -> dict[str, Any] | None:
        job = self._jobs.get(key)
        return None if job is None else job.shown

    async def cancel(self, key: JobKey) -> None:
        """Ends the work, if there is some of this key, and waits for the end."""
        if (job := self._jobs.get(key)) is not None:
            job.task.cancel()
            await asyncio.wait({job.task})

    async def stop(self) -> None:
        """Ends all work."""
        await asyncio.gather(*(self.cancel(key) for key in list(self._jobs)))
