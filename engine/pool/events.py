"""Events about models, and their subscribers: what GET /models/sse streams."""

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal
from weakref import WeakSet

import msgspec

from specllama.engine.wire.process import Changes

EventName = Literal[
    "model_status",
    "status_change",
    "download_progress",
    "download_finished",
    "download_failed",
    "model_remove",
    "models_reload",
]

EVERY_MODEL = "*"
"""The model of events that are about all of them."""

MAX_WAITING = 1000  # events; a subscriber that is further behind is dropped


class ModelEvent(msgspec.Struct, frozen=True):
    """One change of one model.

    - `model_status`: work on it begins, `data` has the new `status`;
    - `status_change`: `data` has the new `status`, with an `exit_code` if it was unloaded, and
      while it loads its `progress`: `{"stages": [...], "current": ..., "value": 0..1}`;
    - `download_progress`: `data` is `{"progress": {FILE: {"done": BYTES, "total": BYTES}}}`;
    - `download_finished` and `download_failed`, with nothing more;
    - `model_remove`: it is not there any more;
    - `models_reload`, of `EVERY_MODEL`: the list may be another one.
    """

    model: str
    event: EventName
    data: dict[str, Any] = {}


class Subscription(AsyncIterator[ModelEvent]):
    """The events from the moment of the subscription, until `close`, the end of the server, or
    until the subscriber is too far behind.

    For a slow subscriber, a model's newer progress takes the place of its older one.
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
    """Publishes events to all subscribers. Subscriptions that nobody holds any more vanish."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closed = False

    def subscribe(self) -> Subscription:
        """The events from now on."""
        subscription = Subscription()
        if self._closed:
            subscription.close()
        else:
            self._subscriptions.add(subscription)
        return subscription

    def publish(self, event: ModelEvent, *, is_progress: bool = False) -> None:
        """Give the event to every subscriber; `is_progress` says that a newer one replaces it."""
        for subscription in list(self._subscriptions):
            subscription.put(event, is_progress=is_progress)

    def close(self) -> None:
        """End all subscriptions, and those to come."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
