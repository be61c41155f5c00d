"""Shows how far downloads and loading are: bars on a terminal, else a line in the log now and
then."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from engine.catalog.fetch import Transfer
from engine.catalog.sizes import shown_size
from engine.pool import ModelPool

download_log = logging.getLogger("specllama.download")
load_log = logging.getLogger("specllama.load")

LOG_STEP = 10  # percent
LOG_STEP_BYTES = 256 << 20  # where the size is not known
PATIENCE = 2.0  # s of loading until there are lines about how far it is


class _Amount(DownloadColumn):
    """Bytes of a download, percent of a model that is being loaded."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["bytes"] else Text(f"{task.percentage:.0f} %")


class _Speed(TransferSpeedColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["bytes"] else Text()


class ModelProgress:
    """The display of all downloads and loadings that run. Use it as a context manager.

    `console` is where bars go if it is a terminal; by default that is stderr. `clock` counts
    seconds.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        console = console or Console(stderr=True)
        self._clock = clock
        self._tasks: dict[str, TaskID] = {}
        self._logged: dict[str, int] = {}  # the last step told of
        self._loading_since: dict[str, float] = {}
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                _Amount(binary_units=True),
                _Speed(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                auto_refresh=False,  # no thread: every update draws
                redirect_stdout=False,  # nothing is to stand between others and their streams
                redirect_stderr=False,
            )

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
        """The download of `model` has come as far as `transfer`."""
        if self._bars is None:
            self._log_download(model, transfer)
        else:
            self._draw(model, model, transfer.n_done, transfer.n_total or None, in_bytes=True)

    def load(self, model: str, fraction: float) -> None:
        """Of `model`, so much is loaded."""
        if model not in self._loading_since:
            self.finish(model)  # its download
            self._loading_since[model] = self._clock()
            load_log.info("loading %s", model)
        if self._bars is not None:
            self._draw(model, f"loading {model}", fraction, 1.0, in_bytes=False)
        elif self._clock() - self._loading_since[model] >= PATIENCE:
            step = int(fraction * 100) // LOG_STEP
            if self._logged.get(model) != step:
                self._logged[model] = step
                load_log.info("loading %s: %d %%", model, step * LOG_STEP)

    def loaded(self, model: str) -> None:
        """The loading of `model` has ended well."""
        since = self._loading_since.get(model)
        self.finish(model)
        if since is not None:
            load_log.info("loaded %s in %.1f s", model, self._clock() - since)

    def finish(self, model: str) -> None:
        """What was done for `model` has ended, well or badly, or is not shown any more."""
        self._logged.pop(model, None)
        self._loading_since.pop(model, None)
        task = self._tasks.pop(model, None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)
            if not self._tasks:
                self._bars.stop()

    def _draw(
        self, model: str, title: str, done: float, total: float | None, *, in_bytes: bool
    ) -> None:
        assert self._bars is not None
        if model not in self._tasks:
            if not self._tasks:
                self._bars.start()
            self._tasks[model] = self._bars.add_task(title, total=None, bytes=in_bytes)
        self._bars.update(self._tasks[model], completed=done, total=total, refresh=True)

    def _log_download(self, model: str, transfer: Transfer) -> None:
        n_done, n_total = transfer.n_done, transfer.n_total
        step = n_done * 100 // n_total // LOG_STEP if n_total else n_done // LOG_STEP_BYTES
        if self._logged.get(model) == step:
            return
        self._logged[model] = step
        share = f"{step * LOG_STEP} % of {shown_size(n_total)}" if n_total else shown_size(n_done)
        download_log.info("downloading %s: %s", model, share)


async def show_progress(pool: ModelPool, models: Iterable[str]) -> None:
    """Shows what the pool downloads and loads, until it is stopped. `models` are those that it
    may have begun with."""
    with ModelProgress() as display, closing(pool.subscribe()) as news:
        for model in models:
            status = pool.status(model)
            if status.value == "loading":
                display.load(model, status.progress)
        async for event in news:
            status = pool.status(event.model)
            if event.event == "download_progress" and status.transfer is not None:
                display.download(event.model, status.transfer)
            elif event.event in ("download_finished", "download_failed"):
                display.finish(event.model)
            elif event.event in ("model_status", "status_change"):
                match event.data["status"]:
                    case "loading":
                        value = event.data.get("progress", {}).get("value", 0.0)
                        display.load(event.model, value)
                    case "loaded":
                        display.loaded(event.model)
                    case "unloaded" | "sleeping":
                        display.finish(event.model)
