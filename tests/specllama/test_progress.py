"""The display of downloads."""

import asyncio
import io
import logging

import pytest
from rich.console import Console

from specllama.engine.helpers.download.downloader import Transfer
from specllama.progress import ModelProgress, show_progress
from tests.support.pool_stage import soon, stage

MIB = 1 << 20


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120), text


def test_a_log_gets_a_line_for_each_tenth(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    screen, text = console(terminal=False)
    with ModelProgress(screen) as progress:
        for n in range(0, 101, 3):
            progress.download("a", Transfer("x.gguf", n * MIB, 100 * MIB))
            progress.download("b", Transfer("y.gguf", 0, 100 * MIB))
        progress.download("a", Transfer("x.gguf", 100 * MIB, 100 * MIB))
    tenths = [f"downloading a: {share} % of 100.0 MiB" for share in range(0, 101, 10)]
    assert [m for m in caplog.messages if " a: " in m] == tenths
    assert [m for m in caplog.messages if " b: " in m] == ["downloading b: 0 % of 100.0 MiB"]
    assert text.getvalue() == ""


def test_a_log_of_an_unknown_size(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ModelProgress(console(terminal=False)[0]) as progress:
        for n in range(0, 600, 7):
            progress.download("a", Transfer("x.gguf", n * MIB, 0))
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == "downloading a: 0 bytes"


def test_a_terminal_gets_bars(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    screen, text = console(terminal=True)
    with ModelProgress(screen) as progress:
        progress.download("maker/a[b]", Transfer("x.gguf", 10 * MIB, 100 * MIB))
        progress.download("c", Transfer("y.gguf", 5 * MIB, 0))
        progress.finish("c")
        progress.finish("c")
        progress.download("maker/a[b]", Transfer("x.gguf", 50 * MIB, 100 * MIB))
    assert "maker/a[b]" in text.getvalue()
    assert "50.0/100.0 MiB" in text.getvalue()
    assert caplog.messages == []


def test_nothing_is_shown_when_nothing_is_downloaded() -> None:
    screen, text = console(terminal=True)
    with ModelProgress(screen):
        pass
    assert text.getvalue() == ""


# ---- loading -------------------------------------------------------------------------------


def test_slow_loading_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    screen, text = console(terminal=False)
    with ModelProgress(screen, clock=lambda: now) as progress:
        progress.load("quick", 0.0)
        progress.load("quick", 0.5)
        progress.loaded("quick")
        progress.load("slow", 0.0)
        for percent in range(1, 100):
            now += 0.1
            progress.load("slow", percent / 100)
        progress.loaded("slow")
        progress.loaded("slow")
        progress.load("bad", 0.0)
        progress.finish("bad")
        progress.loaded("bad")
    assert caplog.messages == [
        "loading quick",
        "loaded quick in 0.0 s",
        "loading slow",
        *(f"loading slow: {percent} %" for percent in range(20, 91, 10)),
        "loaded slow in 9.9 s",
        "loading bad",
    ]
    assert text.getvalue() == ""


def test_a_terminal_gets_a_bar_for_loading_after_the_download() -> None:
    screen, text = console(terminal=True)
    with ModelProgress(screen) as progress:
        progress.download("a", Transfer("x.gguf", 10 * MIB, 100 * MIB))
        progress.load("a", 0.0)
        progress.load("a", 0.37)
        progress.download("b", Transfer("y.gguf", 10 * MIB, 100 * MIB))
        progress.loaded("a")
    assert "loading a" in text.getvalue()
    assert "37 %" in text.getvalue()
    assert "warming up" not in text.getvalue()
    assert "10.0/100.0 MiB" in text.getvalue()


def test_the_beginning_of_loading_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with stage(models_max=1) as s:
            showing = asyncio.create_task(show_progress(s.pool, s.catalog.entries))
            await soon()
            a = await s.loaded("a")
            b = s.lease("b")
            await soon()
            assert caplog.messages[-1] == "b waits until another model is unloaded"
            a.release()
            await soon()
            assert caplog.messages[-1] == "loading b"
            s.engine("b").become_ready()
            (await b).release()
            await s.engine("b").fall_asleep()
            a = await s.loaded("a")
            b = s.lease("b")
            await soon()
            assert caplog.messages[-1] == "b waits until another model is unloaded"
            a.release()
            await soon()
            assert caplog.messages[-1] == "loading b"
            s.engine("b").become_ready()
            (await b).release()
            await soon()
            lines = [message for message in caplog.messages if " b" in message or "b " in message]
            assert [message.partition(" in ")[0] for message in lines] == [
                *("b waits until another model is unloaded", "loading b", "loaded b"),
                *("b waits until another model is unloaded", "loading b", "loaded b"),
            ]
            showing.cancel()
            await asyncio.wait({showing})

    asyncio.run(run())


def test_seconds_count_from_the_beginning_of_the_loading(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    with ModelProgress(console(terminal=False)[0], clock=lambda: now) as progress:
        progress.wait("a")
        now += 60
        progress.load("a", 0.0)
        now += 1
        progress.loaded("a")
    assert caplog.messages == [
        "a waits until another model is unloaded",
        "loading a",
        "loaded a in 1.0 s",
    ]
