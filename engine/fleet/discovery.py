"""The replicas that this process knows, by deployment.

The distributed engine that starts replicas reports them here, from a thread of its own. This module
imports nothing of that engine.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from specllama.engine.fleet.channel import Address

Update: TypeAlias = Callable[[Mapping[str, Address]], object]
"""Receives the replicas of a deployment, by their names."""


class GoneError(Exception):
    """The replica for which a call is meant is no longer there."""


class Discovery:
    """Passes the replicas of each deployment from the thread that learns of them to the event loop
    that uses them."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Address]] = {}
        self._watchers: dict[str, Update] = {}

    def watch(self, deployment: str, update: Update) -> None:
        """Calls `update` on the running event loop: now, and at each change. A later call for the
        same deployment replaces this one."""
        loop = asyncio.get_running_loop()
        self._watchers[deployment] = lambda known: loop.call_soon_threadsafe(update, known)
        if (known := self._known.get(deployment)) is not None:
            update(known)

    def known(self, deployment: str) -> Mapping[str, Address] | None:
        """Returns the replicas of a deployment, or None if they haven't been reported yet."""
        return self._known.get(deployment)

    def publish(self, deployment: str, known: Mapping[str, Address]) -> None:
        """Reports all replicas of a deployment. Safe to call from any thread."""
        self._known[deployment] = known
        if (update := self._watchers.get(deployment)) is not None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                update(known)


discovery = Discovery()
"""The one of this process, as the reporting code has no other way to it."""
