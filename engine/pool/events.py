"""What happens to models, as events for whoever wants to follow: the news of GET /models/sse."""

import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal
from weakref import WeakSet

import msgspec

from engine.processes.changes import Changes

EventName = Literal[
    "model_status",
    "status_change",
    "download_progress",
    "download_finished",
    "download_failed",
]

MAX_WAITING = 1000  # events; a reader that is further behind is let go
PROGRESS_SECONDS = 0.1  # between two events about the progress of one model


class ModelEvent(msgspec.Struct, frozen=True):
    """One change of one model.

    - `model_status`: work on it begins, `data` has the new `status`;
    - `status_change`: `data` has the new `status`, with an `exit_code` if it was unloaded, and
      while it loads its `progress`: `{"stages": [...], "current": ..., "value": 0..1}`;
    - `download_progress`: `data` is `{"progress": {FILE: {"done": BYTES, "total": BYTES}}}`;
    - `download_finished` and `download_failed`, with nothing more.
    """

    model: str
    event: EventName
    data: dict[str, Any] = {}


class Subscription(AsyncIterator[ModelEvent]):
    """The events from the moment of the subscription, until `close`, the end of the server, or
    until the reader is too far behind.

    For a slow reader, a model's newer progress takes the place of its older one.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[ModelEvent, bool]] = deque()  # and whether it is progress
        self._closed = False
        self._changes = Changes()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> ModelEvent:
        await self._changes.until(lambda: bool(self._events) or self._closed)
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()[0]

    def close(self) -> None:
        """No further events; those that have come can still be read."""
        self._closed = True
        self._changes.announce()

    def put(self, event: ModelEvent, *, is_progress: bool) -> None:
        if self._closed:
            return
        if is_progress:
            self._drop_progress(event.model)
        self._events.append((event, is_progress))
        if len(self._events) > MAX_WAITING:
            self.close()
        self._changes.announce()

    def _drop_progress(self, model: str) -> None:
        for waiting in self._events:
            if waiting[1] and waiting[0].model == model:
                self._events.remove(waiting)
                return


class ModelEvents:
    """Hands every event to all subscriptions; those that nobody reads any more vanish."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closed = False
        self._progress_at: dict[str, float] = {}

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        if self._closed:
            subscription.close()
        else:
            self._subscriptions.add(subscription)
        return subscription

    def publish(self, model: str, event: EventName, data: dict[str, Any] | None = None) -> None:
        self._progress_at.pop(model, None)
        self._put(ModelEvent(model, event, data or {}), is_progress=False)

    def publish_progress(self, model: str, event: EventName, data: dict[str, Any]) -> None:
        """Does nothing if the last one was less than PROGRESS_SECONDS ago."""
        now = time.monotonic()
        if now - self._progress_at.get(model, -PROGRESS_SECONDS) >= PROGRESS_SECONDS:
            self._progress_at[model] = now
            self._put(ModelEvent(model, event, data), is_progress=True)

    def close(self) -> None:
        """End all subscriptions, and those to come."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()

    def _put(self, event: ModelEvent, *, is_progress: bool) -> None:
        for subscription in list(self._subscriptions):
            subscription.put(event, is_progress=is_progress)
