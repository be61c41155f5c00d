"""Shows the progress of downloads and of loading models: with bars on a terminal, otherwise with
occasional log lines."""

import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING

from specllama import terminal
from specllama.engine.catalog.locations import shown_size
from specllama.engine.helpers.download.downloader import Transfer
from specllama.engine.models.pool import ModelPool

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from specllama.bars import Bars

download_log = logging.getLogger("specllama.download")
load_log = logging.getLogger("specllama.load")

LOG_STEP = 10  # percent between two log lines
LOG_STEP_BYTES = 256 << 20  # bytes between two log lines of a download of unknown size
PATIENCE = 2.0  # s of loading until its progress is logged


class ModelProgress:
    """A context manager that displays all running downloads and all models that are being loaded.

    The bars are on `console`, by default stderr, if it is a terminal. `clock` returns seconds.
    """

    def __init__(
        self, console: "Console | None" = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._draws = console.is_terminal if console else sys.stderr.isatty()
        self._clock = clock
        self._tasks: dict[str, TaskID] = {}
        self._logged: dict[str, int] = {}  # the last step that was logged
        self._loading_since: dict[str, float] = {}
        self._bars: Bars | None = None  # once something was drawn

    def __enter__(self) -> "ModelProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for model in list(self._tasks):
            self.finish(model)

    def download(self, model: str, transfer: Transfer) -> None:
        """Shows the progress of the download of `model`."""
        if self._draws:
            self._draw(model, model, transfer.n_done, transfer.n_total or None, in_bytes=True)
        else:
            self._log_download(model, transfer)

    def wait(self, model: str) -> None:
        """Logs that `model` can't be loaded yet, because too many models are loaded."""
        self.finish(model)
        load_log.info("%s waits until another model is unloaded", model)

    def load(self, model: str, fraction: float) -> None:
        """Shows the loaded fraction of `model`."""
        if model not in self._loading_since:
            self.finish(model)  # its download
            self._loading_since[model] = self._clock()
            load_log.info("loading %s", model)
        if self._draws:
            # The first evaluation reads weights that are mapped from their file.
            work = "loading" if fraction < 1 else "warming up"
            self._draw(model, f"{work} {model}", fraction, 1.0, in_bytes=False)
        elif self._clock() - self._loading_since[model] >= PATIENCE:
            step = int(fraction * 100) // LOG_STEP
            if self._logged.get(model) != step:
                self._logged[model] = step
                load_log.info("loading %s: %d %%", model, step * LOG_STEP)

    def loaded(self, model: str) -> None:
        """Logs that `model` is loaded, and ends its display."""
        since = self._loading_since.get(model)
        self.finish(model)
        if since is not None:
            load_log.info("loaded %s in %.1f s", model, self._clock() - since)

    def finish(self, model: str) -> None:
        """Ends the display for `model`."""
        self._logged.pop(model, None)
        self._loading_since.pop(model, None)
        task = self._tasks.pop(model, None)
        if self._bars is None or task is None:
            return
        with terminal.lock:
            self._bars.remove_task(task)
            if not self._tasks:
                terminal.hide()

    def _draw(
        self, model: str, title: str, done: float, total: float | None, *, in_bytes: bool
    ) -> None:
        if self._bars is None:
            from specllama.bars import Bars  # most servers draw nothing

            self._bars = Bars(self._console)
        with terminal.lock:
            if model not in self._tasks:
                if not self._tasks:
                    terminal.show(self._bars)
                self._tasks[model] = self._bars.add_task(title, total=None, bytes=in_bytes)
            task = self._tasks[model]
            self._bars.update(task, description=title, completed=done, total=total, refresh=True)

    def _log_download(self, model: str, transfer: Transfer) -> None:
        n_done, n_total = transfer.n_done, transfer.n_total
        step = n_done * 100 // n_total // LOG_STEP if n_total else n_done // LOG_STEP_BYTES
        if self._logged.get(model) == step:
            return
        self._logged[model] = step
        share = f"{step * LOG_STEP} % of {shown_size(n_total)}" if n_total else shown_size(n_done)
        download_log.info("downloading %s: %s", model, share)


async def show_progress(pool: ModelPool, models: Iterable[str]) -> None:
    """Shows the pool's downloads and loading of models, until it is cancelled. Loading of `models`
    may have begun already."""
    with ModelProgress() as display, closing(pool.subscribe()) as events:
        for model in models:
            status = pool.status(model)
            if status.waiting:
                display.wait(model)
            elif status.value == "loading":
                display.load(model, status.progress)
        async for event in events:
            status = pool.status(event.model)
            if event.event == "download_progress" and status.transfer is not None:
                display.download(event.model, status.transfer)
            elif event.event in ("download_finished", "download_failed"):
                display.finish(event.model)
            elif event.event in ("model_status", "status_change"):
                match event.data["status"]:
                    case _ if "waiting" in event.data:
                        display.wait(event.model)
                    case "loading":
                        value = event.data.get("progress", {}).get("value", 0.0)
                        display.load(event.model, value)
                    case "loaded":
                        display.loaded(event.model)
                    case "unloaded" | "sleeping":
                        display.finish(event.model)
