"""Passes libmtmd's messages to the log, and its errors to the failing call."""

import ctypes
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

from llama_cpp import llama_cpp as C
from llama_cpp import mtmd_cpp as M

from specllama.engine.errors import BackendError

log = logging.getLogger("specllama.engine.mtmd")

_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
"""libmtmd's informational lines are logged as debug: it logs too much about each image."""

_PASSED_ON = re.compile(r"[\w:]+(\(\))?$|failed to load model ")

_thread_errors = threading.local()  # libmtmd runs on several threads at once


def _on_log(level: int, text: bytes, _user: Any) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line:
        return
    if level == 4:
        errors = vars(_thread_errors).setdefault("errors", [])
        errors.append(line)
        del errors[:-8]
    log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


_callback = C.llama_log_callback(_on_log)


def listen() -> None:
    """Redirect libmtmd's log from stderr to this module's logger. May be called repeatedly."""
    for function in (M.mtmd_log_set, M.mtmd_helper_log_set):
        set_log: Callable[[Any, Any], None] = function
        set_log(_callback, ctypes.c_void_p(0))


def forget_errors() -> None:
    """Discard this thread's earlier errors of libmtmd, so that `failure` reports only later
    ones."""
    vars(_thread_errors)["errors"] = []


def failure(message: str) -> BackendError:
    """An error with libmtmd's first error in this thread as the reason."""
    errors = vars(_thread_errors).pop("errors", [])
    return BackendError(f"{message}: {_bare(errors[0])}" if errors else message)


def _bare(line: str) -> str:
    """The first line, without the leading names of functions that pass an error on."""
    parts = line.splitlines()[0].removesuffix(".").split(": ")
    while len(parts) > 1 and _PASSED_ON.match(parts[0]):
        del parts[0]
    return ": ".join(parts)
