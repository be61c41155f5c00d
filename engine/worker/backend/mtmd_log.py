"""What libmtmd says: to our log, and as the reason of a failure to whoever had it."""

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
"""It says more of each image than a log of llama.cpp's should have."""

_PASSED_ON = re.compile(r"[\w:]+(\(\))?$|failed to load model ")

_heard = threading.local()  # it works on several threads at once


def _on_log(level: int, text: bytes, _user: Any) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line:
        return
    if level == 4:
        errors = vars(_heard).setdefault("errors", [])
        errors.append(line)
        del errors[:-8]
    log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


_callback = C.llama_log_callback(_on_log)


def listen() -> None:
    """Send what libmtmd says to our log, rather than to stderr. More than once does no harm."""
    for hear in (M.mtmd_log_set, M.mtmd_helper_log_set):
        heard: Callable[[Any, Any], None] = hear
        heard(_callback, ctypes.c_void_p(0))


def forget_errors() -> None:
    """Complaints of libmtmd in this thread belong to its next failure from now on."""
    vars(_heard)["errors"] = []


def failure(message: str) -> BackendError:
    """An error with libmtmd's first complaint in this thread as the reason."""
    errors = vars(_heard).pop("errors", [])
    return BackendError(f"{message}: {_bare(errors[0])}" if errors else message)


def _bare(line: str) -> str:
    """The first line without the functions in front that pass an error on."""
    parts = line.splitlines()[0].removesuffix(".").split(": ")
    while len(parts) > 1 and _PASSED_ON.match(parts[0]):
        del parts[0]
    return ": ".join(parts)
