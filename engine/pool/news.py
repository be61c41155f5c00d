"""Turns what is known of models into the events of `engine.pool.events`."""

from typing import Any

from engine.pool.events import ModelEvents
from engine.pool.status import ModelStatus


class ModelNews(ModelEvents):
    """Publishes what is new in a model's status."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, ModelStatus] = {}

    def last(self, name: str) -> ModelStatus:
        """The status that was published last."""
        return self._last.get(name, ModelStatus())

    def begin(self, name: str, status: ModelStatus) -> None:
        """Work on an unloaded model begins."""
        self._last[name] = status
        self.publish(name, "model_status", {"status": status.value})

    def update(self, name: str, status: ModelStatus) -> None:
        """The status may have changed."""
        before = self.last(name)
        self._last[name] = status
        if (status.value, status.failed) == (before.value, before.failed):
            return
        data: dict[str, Any] = {"status": status.value}
        if status.value == "unloaded":
            # Readers know a failure by a code other than 0, also if there was no process.
            data["exit_code"] = (status.exit_code or 1) if status.failed else 0
        self.publish(name, "status_change", data)

    def progress(self, name: str, status: ModelStatus) -> None:
        """Only the progress has changed."""
        data: dict[str, Any]
        if status.value == "loading":
            stage = "text_model"
            progress = {"stages": [stage], "current": stage, "value": status.progress}
            data = {"status": "loading", "progress": progress}
            self.publish_progress(name, "status_change", data)
        elif status.value == "downloading" and (transfer := status.transfer):
            done = {"done": transfer.n_done, "total": transfer.n_total}
            data = {"progress": {transfer.file: done}}
            self.publish_progress(name, "download_progress", data)

    def downloaded(self, name: str, *, ok: bool) -> None:
        self.publish(name, "download_finished" if ok else "download_failed")
