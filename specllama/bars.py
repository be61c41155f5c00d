"""Progress bars on a terminal. Importing this module takes a while."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text


class _Amount(DownloadColumn):
    """The bytes of a download, or the percentage of a model that is being loaded."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["bytes"] else Text(f"{task.percentage:.0f} %")


class _Speed(TransferSpeedColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["bytes"] else Text()


class _Remaining(TimeRemainingColumn):
    """The remaining time; empty once all is done, since the time of further work is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.finished else super().render(task)


class Bars(Progress):
    """A display of bars, at first none, on `console`, by default on stderr. A task's field `bytes`
    is True if its numbers are bytes."""

    def __init__(self, console: Console | None = None) -> None:
        self._paused = False
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Amount(binary_units=True),
            _Speed(),
            _Remaining(),
            console=console or Console(stderr=True),
            transient=True,
            auto_refresh=False,  # no thread: every update draws
            redirect_stdout=False,  # other code writes to its streams directly
            redirect_stderr=False,
        )

    def pause(self) -> None:
        """Removes the bars from the terminal. Stopping isn't possible: rich, when it is started
        again, would erase as many lines as it had bars."""
        self._paused = True
        self.refresh()

    def resume(self) -> None:
        """Draws the bars again, below lines written meanwhile."""
        self._paused = False
        self.refresh()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Returns the bars to draw; none while they are paused."""
        return () if self._paused else super().get_renderables()
