"""Bars on a terminal for what takes long. Importing this takes a while."""

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
    """Bytes of a download, percent of a model that is being loaded."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["bytes"] else Text(f"{task.percentage:.0f} %")


class _Speed(TransferSpeedColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["bytes"] else Text()


class _Remaining(TimeRemainingColumn):
    """Nothing once all is done: what may follow has no end that is known."""

    def render(self, task: Task) -> Text:
        return Text() if task.finished else super().render(task)


class Bars(Progress):
    """A display without bars yet, on `console`, by default on stderr. The field `bytes` of a task
    says whether its numbers are bytes."""

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
            redirect_stdout=False,  # nothing is to stand between others and their streams
            redirect_stderr=False,
        )

    def pause(self) -> None:
        """Take the bars off the terminal. Stopping would not do: rich, started again, erases as
        many lines as it had bars."""
        self._paused = True
        self.refresh()

    def resume(self) -> None:
        """Draw them below what was written meanwhile."""
        self._paused = False
        self.refresh()

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn."""
        return () if self._paused else super().get_renderables()
