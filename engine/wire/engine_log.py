"""Both ends of an engine process's stderr, whose lines go to the server's log.

Our own lines, llama.cpp's included, come as a mark and JSON `[level, logger, message]`, so that
they keep their level, and a message of several lines stays together. Whatever else there is
(a failed assertion, the last words of a C++ library) is taken as it comes. A pipe keeps what was
written to it, so nothing of a crash is lost.
"""

import logging
import sys
from collections import deque

import msgspec

from specllama.engine import system

MARK = b"\x1e"  # as in a JSON text sequence (RFC 7464)
MAX_TEXT = 4096  # characters of a message; of what is longer, the middle is left out
MAX_LINE = 1 << 15  # bytes; what is longer is cut. No message of ours is, however it is escaped
BURST = 1000  # lines
LINES_PER_SECOND = 100.0  # in the long run
LAST_LINES = 20  # of those that were too many: the end of a crash is logged in any case

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
    """Limits the number of lines at once, and per second; `now` in seconds."""

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
    """Reads, in the server, the stderr of one engine process. `model` is named in each line, where
    there are many; `everything` lifts the limit of lines."""

    def __init__(self, model: str = "", *, everything: bool = False) -> None:
        self._model = model
        self._rate = None if everything else Rate(system.now())
        self._rest = bytearray()  # the beginning of a line
        self._n_too_many = 0
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)  # of those that were too many

    def feed(self, data: bytes) -> None:
        """The next bytes, in pieces of any length."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._rest += line[: MAX_LINE + 1]
            self._take(bytes(self._rest))
            self._rest.clear()
        if len(self._rest) <= MAX_LINE:
            self._rest += rest[: MAX_LINE + 1]

    def close(self) -> None:
        """There is no more."""
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
                pass  # another thread, or C code, wrote in the middle of it
            else:
                log_for(logging.getLogger(name), level, self._model, text)
                return
        text = line[:MAX_LINE].decode("utf-8", "replace")
        if len(line) > MAX_LINE:
            text += "..."
        text = "".join(char if char.isprintable() else " " for char in text)
        log_for(log, logging.WARNING, self._model, text)


def log_for(logger: logging.Logger, level: int, model: str, text: str) -> None:
    """Log what concerns the engine of `model`, which is named if it has a name."""
    if model:
        logger.log(level, "%s: %s", model, text, extra={"fields": {"model": model}})
    else:
        logger.log(level, "%s", text)
