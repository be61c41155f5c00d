"""Both ends of an engine process's stderr, whose lines are written to the server's log.

Lines of the Python log, including llama.cpp's, are sent as a mark and JSON `[level, logger,
message]`, so that they keep their level, and a message of several lines stays together. All other
output (a failed assertion, a C++ library's error) is logged line by line. A pipe keeps written
data, so the output of a crash isn't lost.
"""

import logging
import sys
from collections import deque

import msgspec

from specllama.engine import system

MARK = b"\x1e"  # as in a JSON text sequence (RFC 7464)
MAX_TEXT = 4096  # characters of a message; the middle of longer ones is left out
MAX_LINE = 1 << 15  # bytes; longer lines are cut. An escaped message is always shorter
BURST = 1000  # lines
LINES_PER_SECOND = 100.0  # in the long run
LAST_LINES = 20  # of the excess lines: the end of a crash is always logged

log = logging.getLogger("specllama.engine")


class _MarkedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).encode("utf-8", "backslashreplace").decode()
        if len(text) > MAX_TEXT:
            text = f"{text[: MAX_TEXT // 2]} ... {text[-MAX_TEXT // 2 :]}"
        line = msgspec.json.encode((record.levelno, record.name, text))
        return (MARK + line).decode()


def send_log(level: int) -> None:
    """Sends the log of an engine process to stderr, in the form that `EngineLog` reads."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_MarkedFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)


class Rate:
    """Limits the number of lines: `BURST` at once, and `LINES_PER_SECOND` in the long run. Times
    are in seconds."""

    def __init__(self, now: float) -> None:
        self._left = float(BURST)
        self._at = now

    def admits(self, now: float) -> bool:
        self._left = min(BURST, self._left + LINES_PER_SECOND * max(now - self._at, 0.0))
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class EngineLog:
    """Reads the stderr of one engine process, in the server. Each line names `model`, if it isn't
    empty; `everything` lifts the limit of lines."""

    def __init__(self, model: str = "", *, everything: bool = False) -> None:
        self._model = model
        self._rate = None if everything else Rate(system.now())
        self._rest = bytearray()  # an incomplete line
        self._n_too_many = 0
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)  # of the excess lines

    def feed(self, data: bytes) -> None:
        """Add the next bytes, in pieces of any length."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._rest += line[: MAX_LINE + 1]
            self._take(bytes(self._rest))
            self._rest.clear()
        if len(self._rest) <= MAX_LINE:
            self._rest += rest[: MAX_LINE + 1]

    def close(self) -> None:
        """Log the incomplete line and the dropped lines at the end of the output."""
        if self._rest:
            self.feed(b"\n")
        self._log_dropped()

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        if self._rate is None or self._rate.admits(system.now()):
            self._log_dropped()
            self._log(line)
        else:
            self._n_too_many += 1
            self._last.append(line)

    def _log_dropped(self) -> None:
        if n_dropped := self._n_too_many - len(self._last):
            text = f"{n_dropped} more lines were left out"
            log_for(log, logging.WARNING, self._model, text)
        self._n_too_many = 0
        while self._last:
            self._log(self._last.popleft())

    def _log(self, line: bytes) -> None:
        if line.startswith(MARK):
            try:
                level, name, text = msgspec.json.decode(line[1:], type=tuple[int, str, str])
            except msgspec.MsgspecError:
                pass  # another thread or C code wrote into the line
            else:
                log_for(logging.getLogger(name), level, self._model, text)
                return
        text = line[:MAX_LINE].decode("utf-8", "replace")
        if len(line) > MAX_LINE:
            text += "..."
        text = "".join(char if char.isprintable() else " " for char in text)
        log_for(log, logging.WARNING, self._model, text)


def log_for(logger: logging.Logger, level: int, model: str, text: str) -> None:
    """Log a line about the engine of `model`; names it if it isn't empty."""
    if model:
        logger.log(level, "%s: %s", model, text, extra={"fields": {"model": model}})
    else:
        logger.log(level, "%s", text)
