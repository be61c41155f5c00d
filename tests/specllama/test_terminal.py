"""Lines of the log and bars on one terminal, as it shows them in the end."""

import io
import logging
import re

from rich.console import Console

from specllama import logs
from specllama.engine.helpers.download.downloader import Transfer
from specllama.progress import ModelProgress
from specllama.terminal import above_bars

_CODE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")


class Screen(io.StringIO):
    """A terminal with the abilities that bars need: moving up, and erasing lines."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        rows, at, column = [""], 0, 0
        text, place = self.getvalue(), 0
        while place < len(text):
            code = _CODE.match(text, place)
            if code:
                place = code.end()
                if code[2] == "A":
                    at -= int(code[1] or 1)
                elif code[2] == "K":
                    assert code[1] == "2"
                    rows[at] = ""
                else:
                    assert code[2] in "mhl", code[0]
                continue
            letter, place = text[place], place + 1
            if letter == "\r":
                column = 0
            elif letter == "\n":
                at, column = at + 1, 0
                rows += [""] * (at + 1 - len(rows))
            else:
                rows[at] = rows[at].ljust(column)[:column] + letter + rows[at][column + 1 :]
                column += 1
        return [row.rstrip() for row in rows if row.strip()]


def test_lines_go_above_bars_and_bars_leave_nothing_behind() -> None:
    screen = Screen()
    with ModelProgress(Console(file=screen, force_terminal=True, width=80)) as progress:
        progress.download("b", Transfer("y.gguf", 1, 100))
        progress.load("a", 0.0)
        for n in range(3):
            with above_bars():
                screen.write(f"line {n}\n")
            progress.load("a", 0.3 * (n + 1))
        *lines, bar, other = screen.lines()
        assert lines == ["line 0", "line 1", "line 2"]
        assert bar.startswith("b ")
        assert other.startswith("loading a ")
        assert "90 %" in other
        progress.load("a", 1.0)
        *lines, bar, other = screen.lines()
        assert other.startswith("warming up a ")
        assert other.endswith("100 %")
        with above_bars():
            screen.write("ready\n")
        progress.loaded("a")
        progress.finish("b")
    with above_bars():
        screen.write("after\n")
    assert screen.lines() == ["line 0", "line 1", "line 2", "ready", "after"]


def test_the_log_is_written_above_bars() -> None:
    screen = Screen()
    log = logging.getLogger("test.terminal")
    log.addHandler(handler := logs.Console(screen))
    with ModelProgress(Console(file=screen, force_terminal=True, width=80)) as progress:
        progress.load("a", 0.0)
        log.warning("something happened")
        progress.load("a", 0.5)
        line, bar = screen.lines()[-2:]
    log.removeHandler(handler)
    assert "something happened" in line
    assert bar.startswith("loading a ")
