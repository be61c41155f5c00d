"""Configures Python's logging by the options."""

import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from specllama.handlers.options.tables.log import LogOptions
from specllama.terminal import above_bars

_COLORS = {
    logging.DEBUG: "\x1b[2m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


def configure(options: LogOptions) -> None:
    """Sends the log to stderr and to `--log-file`. Raises OSError if the file can't be opened."""
    logging.captureWarnings(True)
    root = logging.getLogger()
    level = options.level()
    if options.log_disable:
        logging.disable(logging.CRITICAL)
        root.handlers = [logging.NullHandler()]
        return
    console = Console(sys.stderr)
    console.setFormatter(_formatter(options, colored=_use_colors(options, sys.stderr)))
    if not options.is_json():
        console.addFilter(lambda record: not getattr(record, "in_banner", False))
    root.handlers = [console]
    if options.log_file:
        file = _log_file(options.log_file)
        file.setFormatter(_formatter(options, colored=False))
        root.addHandler(file)
    root.setLevel(level)
    # uvicorn logs each of its own steps, and a line for every request.
    talkative = logging.NOTSET if level <= logging.DEBUG else logging.WARNING
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error", "asyncio", "connexion", "httpx"):
        logging.getLogger(name).setLevel(talkative)
    # An unknown parameter in a client's query is not an error of the server.
    logging.getLogger("connexion.decorators.parameter").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for two kinds of uvicorn's records: a failed start, which the program reports with the
    reason, and the traceback of each request cancelled after draining, which uvicorn also counts
    in one line."""
    kind = record.exc_info[0] if record.exc_info else None
    import asyncio  # imported late, since logging is configured first of all

    cut_off = kind is not None and issubclass(kind, asyncio.CancelledError)
    return not cut_off and record.msg != "Application startup failed. Exiting."


def _use_colors(options: LogOptions, stream: TextIO) -> bool:
    if options.log_colors == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR")
    return options.log_colors == "on"


def _formatter(options: LogOptions, *, colored: bool) -> logging.Formatter:
    if options.is_json():
        return _JsonFormatter()
    pattern = "%(message)s"
    if options.log_prefix:
        pattern = "%(levelname)s %(name)s: " + pattern
    if options.log_timestamps:
        pattern = "%(asctime)s.%(msecs)03d " + pattern
    return _TextFormatter(pattern, "%Y-%m-%d %H:%M:%S", colored=colored)


def _log_file(path: str) -> logging.Handler:
    """Returns a handler that appends to a file. If the file was renamed or removed, for example by
    logrotate, it creates a new one."""
    from logging.handlers import WatchedFileHandler  # most servers have no such file

    class LogFile(WatchedFileHandler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(OSError):  # opening failed; the next line tries again
                super().emit(record)

    return LogFile(path, encoding="utf-8", errors="backslashreplace")


class Console(logging.StreamHandler[TextIO]):
    """Writes to stderr, above progress bars if it is a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        with above_bars():
            super().emit(record)


class _TextFormatter(logging.Formatter):
    def __init__(self, pattern: str, time_pattern: str, *, colored: bool) -> None:
        super().__init__(pattern, time_pattern)
        self._colored = colored

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        trace_id = getattr(record, "trace_id", "")
        if trace_id and not hasattr(record, "fields"):  # the line of a request has it in its text
            line += f" trace_id={trace_id}"
        color = _COLORS.get(record.levelno, "") if self._colored else ""
        return f"{color}{line}\x1b[0m" if color else line


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object: `time` (ISO 8601, UTC), `level`, `logger`,
    `message`, for an exception also `traceback`, for a traced request `trace_id`, and the members
    of the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = _encodable(self.formatException(record.exc_info))
        if trace_id := getattr(record, "trace_id", ""):
            line["trace_id"] = trace_id
        return msgspec.json.encode(line | getattr(record, "fields", {})).decode()


def _encodable(text: str) -> str:
    """Returns `text` without lone surrogates, which can be in the names of files."""
    return text.encode("utf-8", "backslashreplace").decode()
