"""What is shown of downloads."""

import io
import logging

import pytest
from rich.console import Console

from engine.catalog.fetch import Transfer
from specllama.progress import DownloadProgress

MIB = 1 << 20


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120), text


def test_a_log_gets_a_line_for_each_tenth(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    screen, text = console(terminal=False)
    with DownloadProgress(screen) as progress:
        for n in range(0, 101, 3):
            progress.update("a", Transfer("x.gguf", n * MIB, 100 * MIB))
            progress.update("b", Transfer("y.gguf", 0, 100 * MIB))
        progress.update("a", Transfer("x.gguf", 100 * MIB, 100 * MIB))
    tenths = [f"downloading a: {share} % of 100.0 MiB" for share in range(0, 101, 10)]
    assert [m for m in caplog.messages if " a: " in m] == tenths
    assert [m for m in caplog.messages if " b: " in m] == ["downloading b: 0 % of 100.0 MiB"]
    assert text.getvalue() == ""


def test_a_log_of_an_unknown_size(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with DownloadProgress(console(terminal=False)[0]) as progress:
        for n in range(0, 600, 7):
            progress.update("a", Transfer("x.gguf", n * MIB, 0))
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == "downloading a: 0 bytes"


def test_a_terminal_gets_bars(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    screen, text = console(terminal=True)
    with DownloadProgress(screen) as progress:
        progress.update("maker/a[b]", Transfer("x.gguf", 10 * MIB, 100 * MIB))
        progress.update("c", Transfer("y.gguf", 5 * MIB, 0))
        progress.finish("c")
        progress.finish("c")
        progress.update("maker/a[b]", Transfer("x.gguf", 50 * MIB, 100 * MIB))
    assert "maker/a[b]" in text.getvalue()
    assert "50.0/100.0 MiB" in text.getvalue()
    assert caplog.messages == []


def test_nothing_is_shown_when_nothing_is_downloaded() -> None:
    screen, text = console(terminal=True)
    with DownloadProgress(screen):
        pass
    assert text.getvalue() == ""
