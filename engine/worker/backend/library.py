"""The llama.cpp library of this process: its log, its errors, its devices."""

import ctypes
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.wire.devices import DeviceMemory, DeviceUse
from specllama.engine.worker.backend import loaded
from specllama.engine.worker.backend.ggml import function as ggml
from specllama.engine.worker.backend.kernels import settle
from specllama.engine.worker.backend.memory import Holdings

log = logging.getLogger("specllama.engine.llama")

_NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}
_LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}

holdings = Holdings()
"""The memory of the newest model and context, by device."""

_listener: Holdings = holdings
_errors: list[str] = []
_level = logging.INFO


def _on_log(level: int, text: bytes, _user: Any) -> None:
    global _level
    if level != 5:  # 5 continues the previous line
        _level = _LOG_LEVELS.get(level, logging.DEBUG)
    line = text.decode("utf-8", "replace").rstrip()
    if not line or line == ".":
        return
    if _level >= logging.ERROR:
        _errors.append(line)
        del _errors[:-8]
    _listener.note(line)
    if _listener is holdings:
        log.log(_level, "%s", line)


_log_callback = C.llama_log_callback(_on_log)


def initialize(numa: str = "") -> str:
    """Initialize llama.cpp, once per process, before anything else. Returns a warning if kernels
    had to be switched off, else "". Raises `BackendError` if llama.cpp can't compute on this
    processor, or if two copies of it are loaded."""
    loaded.check(loaded.libraries())
    C.llama_log_set(_log_callback, ctypes.c_void_p(0))
    settled = settle()
    C.llama_backend_init()
    if numa:
        C.llama_numa_init(_NUMA[numa])
    return settled.remark


@contextmanager
def captured_by(other: Holdings) -> Iterator[None]:
    """A context in which `other` records the memory that llama.cpp logs, and llama.cpp's lines stay
    out of the log: they are not about memory that will be used."""
    global _listener
    before, _listener = _listener, other
    try:
        yield
    finally:
        _listener = before


def forget_errors() -> None:
    """Discard earlier errors of llama.cpp, so that `failure` reports only later ones."""
    _errors.clear()


def failure(message: str) -> BackendError:
    """An error with llama.cpp's first error message as the reason."""
    detail = _errors[0] if _errors else ""
    _errors.clear()
    return BackendError(f"{message}: {detail}" if detail else message)


@contextmanager
def on_abort(say: Callable[[str], None]) -> Iterator[None]:
    """A context in which a failed assertion of llama.cpp passes its message to `say`, and then ends
    this process with status 1."""

    def end(message: bytes) -> None:
        # Without the leading file and line.
        say(re.sub(r"^\S+:\d+: ", "", message.decode("utf-8", "replace")).strip())
        os._exit(1)

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(end)
    exchange = ggml("ggml_set_abort_callback", ctypes.c_void_p, ctypes.c_void_p)
    before = exchange(ctypes.cast(callback, ctypes.c_void_p))
    try:
        yield
    finally:
        exchange(before)


def llama(name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """A function of llama.cpp that the bindings don't declare."""
    function: Any = getattr(C._lib, name)
    function.restype, function.argtypes = restype, list(argtypes)
    declared: Callable[..., Any] = function
    return declared


def devices() -> list[tuple[str, str, int, int]]:
    """(name, description, free bytes, total bytes) of every device for offloading."""
    count = ggml("ggml_backend_dev_count", ctypes.c_size_t)
    get = ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    name = ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    text = ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    sizes = ctypes.POINTER(ctypes.c_size_t)
    memory = ggml("ggml_backend_dev_memory", None, ctypes.c_void_p, sizes, sizes)
    found = []
    for i in range(count()):
        device = get(i)
        if kind(device) == 0:  # the CPU itself
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append((name(device).decode(), text(device).decode(), free.value, total.value))
    return found


def list_devices() -> list[str]:
    """One line for each device for offloading. To be called after `initialize`."""
    return [
        f"{name}: {text} ({total >> 20} MiB, {free >> 20} MiB free)"
        for name, text, free, total in devices()
    ]


def device_uses() -> list[DeviceUse]:
    """The memory of the newest model and its context on each device, including the CPU."""
    return holdings.by_device({name: text for name, text, *_ in devices()})


def device_memory() -> list[DeviceMemory]:
    """The present memory of every device for offloading."""
    return [DeviceMemory(name, free, total) for name, _, free, total in devices()]


def view(pointer: Any, n: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """`n` elements of llama.cpp's memory as an array, valid as long as that memory."""
    if not pointer:
        raise BackendError("llama.cpp returned no data")
    address = ctypes.addressof(pointer.contents)  # `cast` would make a cycle of references
    buffer: Any = (ctypes.c_char * (n * dtype.itemsize)).from_address(address)
    return np.frombuffer(buffer, dtype)


def floats(address: int, n: int) -> npt.NDArray[np.float32]:
    """`n` numbers at `address` of llama.cpp's memory as an array, valid as long as that memory."""
    buffer: Any = (ctypes.c_float * n).from_address(address)
    return np.frombuffer(buffer, np.float32)
