"""Bars on a terminal for what takes long. Importing this takes a while."""

from rich.console import Console
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


def new_bars(console: Console | None = None) -> Progress:
    """A display without bars yet, on `console`, by default on stderr. The field `bytes` of a task
    says whether its numbers are bytes."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Amount(binary_units=True),
        _Speed(),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        transient=True,
        auto_refresh=False,  # no thread: every update draws
        redirect_stdout=False,  # nothing is to stand between others and their streams
        redirect_stderr=False,
    )
