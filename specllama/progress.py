"""Shows how far downloads are: bars on a terminal, else a line in the log now and then."""

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from engine.catalog.fetch import Transfer
from engine.catalog.sizes import shown_size

log = logging.getLogger("specllama.download")

LOG_STEP = 10  # percent
LOG_STEP_BYTES = 256 << 20  # where the size is not known


class DownloadProgress:
    """The display of all downloads that run. Use it as a context manager.

    `console` is where bars go if it is a terminal; by default that is stderr.
    """

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._logged: dict[str, int] = {}  # the last step told of
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                auto_refresh=False,  # no thread: every update draws
                redirect_stdout=False,  # nothing is to stand between others and their streams
                redirect_stderr=False,
            )

    def __enter__(self) -> "DownloadProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for model in list(self._tasks):
            self.finish(model)

    def update(self, model: str, transfer: Transfer) -> None:
        """The download of `model` has come as far as `transfer`."""
        if self._bars is None:
            self._log(model, transfer)
            return
        if model not in self._tasks:
            if not self._tasks:
                self._bars.start()
            self._tasks[model] = self._bars.add_task(model, total=None)
        self._bars.update(
            self._tasks[model],
            completed=transfer.n_done,
            total=transfer.n_total or None,
            refresh=True,
        )

    def finish(self, model: str) -> None:
        """The download of `model` has ended, well or badly, or is not shown any more."""
        self._logged.pop(model, None)
        task = self._tasks.pop(model, None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)
            if not self._tasks:
                self._bars.stop()

    def _log(self, model: str, transfer: Transfer) -> None:
        n_done, n_total = transfer.n_done, transfer.n_total
        step = n_done * 100 // n_total // LOG_STEP if n_total else n_done // LOG_STEP_BYTES
        if self._logged.get(model) == step:
            return
        self._logged[model] = step
        share = f"{step * LOG_STEP} % of {shown_size(n_total)}" if n_total else shown_size(n_done)
        log.info("downloading %s: %s", model, share)
