"""Publishes changes of one model's status as the events of `engine.pool.events`."""

import time
from typing import Any

from specllama.engine.pool.events import EventName, ModelEvent, ModelEvents
from specllama.engine.pool.status import ModelStatus

PROGRESS_SECONDS = 0.1  # between two events about the progress of one model


def _told(status: ModelStatus) -> tuple[Any, ...]:
    return status.value, status.failed, status.waiting


class StatusPublisher:
    """Compares a model's status with the one that was published last."""

    def __init__(self, name: str, events: ModelEvents) -> None:
        self.last = ModelStatus()
        """The status that was published last."""
        self._name = name
        self._events = events
        self._progress_at = 0.0  # when progress was published last; 0.0: not since another event

    def begin(self, status: ModelStatus) -> None:
        """Work on an unloaded model begins."""
        self.last = status
        self._publish("model_status", {"status": status.value})

    def update(self, status: ModelStatus) -> None:
        """The status may have changed."""
        before, self.last = self.last, status
        if _told(status) == _told(before):
            return
        data: dict[str, Any] = {"status": status.value}
        if status.waiting:
            data["waiting"] = True
        if status.value == "unloaded":
            # Clients know a failure by a code other than 0, also if there was no process.
            data["exit_code"] = (status.exit_code or 1) if status.failed else 0
        self._publish("status_change", data)

    def progress(self, status: ModelStatus) -> None:
        """Only the progress has changed."""
        if status.value == "loading":
            stage = "text_model"
            progress = {"stages": [stage], "current": stage, "value": status.progress}
            data = {"status": "loading", "progress": progress}
            # The end of it is told in any case: what follows, a warm-up say, has no progress.
            self._publish_progress("status_change", data, is_end=status.progress >= 1)
        elif status.value == "downloading" and (transfer := status.transfer):
            done = {"done": transfer.n_done, "total": transfer.n_total}
            self._publish_progress("download_progress", {"progress": {transfer.file: done}})

    def downloaded(self, *, ok: bool) -> None:
        """The download has ended."""
        self._publish("download_finished" if ok else "download_failed", {})

    def _publish(self, event: EventName, data: dict[str, Any]) -> None:
        self._progress_at = 0.0
        self._events.publish(ModelEvent(self._name, event, data))

    def _publish_progress(
        self, event: EventName, data: dict[str, Any], *, is_end: bool = False
    ) -> None:
        """Do nothing if the last progress is less than PROGRESS_SECONDS old, unless it `is_end`."""
        now = time.monotonic()
        if is_end or not self._progress_at or now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self._events.publish(ModelEvent(self._name, event, data), is_progress=True)
