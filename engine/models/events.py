"""The status of models, and its changes as events for subscribers."""

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal
from weakref import WeakSet

import msgspec

from specllama.engine import system
from specllama.engine.helpers.download.downloader import Transfer
from specllama.engine.models.lifecycle import State
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.wire.process import Changes
from specllama.engine.wire.replies import ModelInfo

# ---- The status of a model, as a snapshot.


StatusValue = Literal["unloaded", "downloading", "loading", "loaded", "sleeping"]

_VALUES: dict[State, StatusValue] = {
    "downloading": "downloading",
    "downloaded": "unloaded",
    "loading": "loading",
    "ready": "loaded",
    "dozing": "loaded",
    "sleeping": "sleeping",
    "waking": "loading",
    "restarting": "loading",
    "failed": "unloaded",
    "draining": "loaded",
    "stopped": "unloaded",
}


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one model. `waiting`: requests wait until there is room to load it, regardless
    of `value`. `failed`, `failure` (one line) and `exit_code` describe the last attempt to load it.
    There is no exit code if its download failed."""

    value: StatusValue = "unloaded"
    waiting: bool = False
    progress: float = 0.0  # progress of downloading or loading, 0..1
    transfer: Transfer | None = None  # progress of the download
    failed: bool = False
    failure: str = ""
    exit_code: int | None = None  # exit code of the last engine process; negative: minus a signal
    info: ModelInfo | None = None  # set by the first loading, until the model is unloaded

    @classmethod
    def of(cls, supervisor: Supervisor) -> "ModelStatus":
        """Returns the status of a model with a supervisor."""
        return cls(
            value=_VALUES[supervisor.state],
            progress=supervisor.progress,
            transfer=supervisor.transfer,
            failed=supervisor.state == "failed",
            failure=supervisor.failure,
            exit_code=supervisor.exit_code,
            info=supervisor.info,
        )


# ---- Events about models, and their subscribers: what GET /models/sse streams.


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
"""The model of events that concern all models."""

MAX_WAITING = 1000  # events, after which a slow subscriber is dropped


class ModelEvent(msgspec.Struct, frozen=True):
    """One change of one model.

    - `model_status`: work on the model begins; `data` has the new `status`;
    - `status_change`: `data` has the new `status`, with an `exit_code` if it was unloaded, and
      while it loads its `progress`: `{"stages": [...], "current": ..., "value": 0..1}`;
    - `download_progress`: `data` is `{"progress": {FILE: {"done": BYTES, "total": BYTES}}}`;
    - `download_finished` and `download_failed`, without data;
    - `model_remove`: the model was removed;
    - `models_reload`, of `EVERY_MODEL`: the list of models may have changed.
    """

    model: str
    event: EventName
    data: dict[str, Any] = {}


class Subscription(AsyncIterator[ModelEvent]):
    """The events from the subscription on. They end with `close`, with the server, or when the
    subscriber is too far behind.

    For a slow subscriber, a model's newer progress replaces its older one.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[ModelEvent, bool]] = deque()  # with a flag for progress events
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
        """Ends the subscription. Events that are already queued can still be read."""
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
    """Publishes events to all subscribers. Unreferenced subscriptions are removed."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closed = False

    def subscribe(self) -> Subscription:
        """Returns the events from now on."""
        subscription = Subscription()
        if self._closed:
            subscription.close()
        else:
            self._subscriptions.add(subscription)
        return subscription

    def publish(self, event: ModelEvent, *, is_progress: bool = False) -> None:
        """Passes the event to every subscriber. With `is_progress`, a newer event replaces it."""
        for subscription in list(self._subscriptions):
            subscription.put(event, is_progress=is_progress)

    def close(self) -> None:
        """Ends all subscriptions, current and future ones."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()


# ---- The changes of one model's status, published as events.


PROGRESS_SECONDS = 0.1  # minimum time between two progress events of one model


def _published_fields(status: ModelStatus) -> tuple[Any, ...]:
    return status.value, status.failed, status.waiting


class StatusPublisher:
    """Publishes the changes of a model's status since the last published one."""

    def __init__(self, name: str, events: ModelEvents) -> None:
        self.last = ModelStatus()
        """The last published status."""
        self._name = name
        self._events = events
        self._progress_at = 0.0  # time of the last event if it was a progress event, else 0.0

    def begin(self, status: ModelStatus) -> None:
        """Publishes that work on an unloaded model begins."""
        self.last = status
        self._publish("model_status", {"status": status.value})

    def update(self, status: ModelStatus) -> None:
        """Publishes the status if it has changed."""
        before, self.last = self.last, status
        if _published_fields(status) == _published_fields(before):
            return
        data: dict[str, Any] = {"status": status.value}
        if status.waiting:
            data["waiting"] = True
        if status.value == "unloaded":
            # Clients recognize a failure by a code other than 0, even if there was no process.
            data["exit_code"] = (status.exit_code or 1) if status.failed else 0
        self._publish("status_change", data)

    def progress(self, status: ModelStatus) -> None:
        """Publishes the progress; called when nothing else has changed."""
        if status.value == "loading":
            stage = "text_model"
            progress = {"stages": [stage], "current": stage, "value": status.progress}
            data = {"status": "loading", "progress": progress}
            # Always publish the end: later stages, such as the warm-up, have no progress.
            self._publish_progress("status_change", data, is_end=status.progress >= 1)
        elif status.value == "downloading" and (transfer := status.transfer):
            done = {"done": transfer.n_done, "total": transfer.n_total}
            self._publish_progress("download_progress", {"progress": {transfer.file: done}})

    def downloaded(self, *, ok: bool) -> None:
        """Publishes the end of the download."""
        self._publish("download_finished" if ok else "download_failed", {})

    def _publish(self, event: EventName, data: dict[str, Any]) -> None:
        self._progress_at = 0.0
        self._events.publish(ModelEvent(self._name, event, data))

    def _publish_progress(
        self, event: EventName, data: dict[str, Any], *, is_end: bool = False
    ) -> None:
        """Publishes a progress event, unless the last one is less than PROGRESS_SECONDS old and
        this one isn't the end."""
        now = system.now()
        if is_end or not self._progress_at or now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self._events.publish(ModelEvent(self._name, event, data), is_progress=True)
