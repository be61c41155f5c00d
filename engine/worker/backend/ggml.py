"""Functions of ggml, the library below llama.cpp, that the Python bindings don't declare: buffer
types for tensors, and pools of CPU threads."""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions

MAX_THREADS = 512  # GGML_MAX_N_THREADS
DENSE_TENSORS = r"\.ffn_(up|down|gate)\."
EXPERT_TENSORS = r"\.ffn_[a-z_]+_(ch)?exps\."
"""A pattern for the tensors with the experts' weights of a mixture-of-experts layer."""

CPU_DEVICE = 0  # GGML_BACKEND_DEVICE_TYPE_CPU


def function(name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """The function `name` with its C signature."""
    found: Any = next(f for each in _libraries() if (f := getattr(each, name, None)) is not None)
    found.restype, found.argtypes = restype, list(argtypes)
    declared: Callable[..., Any] = found
    return declared


@functools.cache
def _libraries() -> list[ctypes.CDLL]:
    """The libraries that contain ggml's functions.

    A symbol lookup in libllama finds the ggml that it uses. `llama_cpp._ggml` of the bindings may
    be another copy (LLAMA_CPP_LIB_PATH). On Windows, a lookup doesn't search dependencies, so the
    libraries are loaded by name from libllama's folder."""
    from llama_cpp import llama_cpp

    if sys.platform != "win32":
        return [llama_cpp._lib]
    folder = Path(llama_cpp._lib._name).parent
    names = [f"{prefix}{name}.dll" for name in ("ggml", "ggml-base") for prefix in ("", "lib")]
    return [ctypes.CDLL(str(folder / name)) for name in names if (folder / name).is_file()]


def load_backends() -> None:
    """Loads ggml's backends from llama.cpp's own folder, where they are separate libraries.

    A portable build (`packaging/portable_wheel.py`) has one library for each kind of processor, and
    ggml loads the best one for this machine. Without this call, ggml would search the folder of
    Python's executable and the working directory, which may contain files of other people. The call
    does nothing if the backends are linked in."""
    from llama_cpp import llama_cpp

    if function("ggml_backend_reg_count", ctypes.c_size_t)():
        return
    folder = Path(llama_cpp._lib._name).parent
    set_log = function("ggml_log_set", None, ctypes.c_void_p, ctypes.c_void_p)
    ignore = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    set_log(ctypes.cast(ignore, ctypes.c_void_p), None)  # ggml prints a line on stderr
    load = function("ggml_backend_load_all_from_path", None, ctypes.c_char_p)
    load(os.fsencode(folder))
    set_log(None, None)  # until `library.initialize`


def of_cpu(name: str, restype: Any, *argtypes: Any) -> Any:
    """A function of the CPU backend, which may be a separate library."""
    return ctypes.CFUNCTYPE(restype, *argtypes)(address_of_cpu(name))


def address_of_cpu(name: str) -> int:
    """The address of a function of the CPU backend. Raises `BackendError` if llama.cpp was built
    without it."""
    device = function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)(CPU_DEVICE)
    if not device:
        raise BackendError("the installed llama.cpp has no backend for the CPU")
    registry = function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
    find = function(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
    )
    address: int = find(registry(device), name.encode())
    return address


class InitParams(ctypes.Structure):
    """struct ggml_init_params"""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


# ---- placement of tensors --------------------------------------------------------------------


class _BufferOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer", ctypes.c_void_p))


def tensor_overrides(options: EngineOptions) -> Any:
    """--override-tensor, --cpu-moe, --n-cpu-moe and --n-cpu-ffn as llama.cpp's terminated array, in
    which the first matching pattern applies; None if there is none.

    Raises `BackendError` for an unknown buffer type.
    """
    pairs: list[tuple[str, int]] = []
    if options.compute.override_tensor:
        known = _buffer_types()
        for text in options.compute.override_tensor:
            pattern, _, name = text.partition("=")
            if name not in known:
                raise BackendError(
                    f"--override-tensor: unknown buffer type {name!r} "
                    f"(available: {', '.join(known)})"
                )
            pairs.append((pattern, known[name]))
    patterns = [EXPERT_TENSORS] if options.compute.cpu_moe else []
    patterns += [rf"blk\.{layer}{EXPERT_TENSORS}" for layer in range(options.compute.n_cpu_moe)]
    patterns += [rf"blk\.{layer}{DENSE_TENSORS}" for layer in range(options.compute.n_cpu_ffn)]
    if patterns:
        cpu = cpu_buffer_type()
        pairs += [(pattern, cpu) for pattern in patterns]
    if not pairs:
        return None
    array = (_BufferOverride * (len(pairs) + 1))()
    for entry, (pattern, buffer) in zip(array, pairs, strict=False):
        entry.pattern, entry.buffer = pattern.encode(), buffer
    return array


def _devices() -> list[int]:
    get = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [get(i) for i in range(function("ggml_backend_dev_count", ctypes.c_size_t)())]


def _buffer_types() -> dict[str, int]:
    """The handle of each device's own buffer type, by name."""
    of = function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    name = function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    return {name(buffer).decode(): buffer for device in _devices() if (buffer := of(device))}


def cpu_buffer_type() -> int:
    """The handle of the buffer type for weights in the CPU's memory as they are in the file."""
    device = function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)(CPU_DEVICE)
    of = function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    handle: int = of(device)
    return handle


def extra_buffer_types() -> dict[str, int]:
    """The handles of the CPU's buffer types for weights that are rearranged for its matrix kernels,
    by name. ggml makes the list at the first call and keeps it."""
    pointer = ctypes.c_void_p
    device = function("ggml_backend_dev_by_type", pointer, ctypes.c_int)(CPU_DEVICE)
    listed = of_cpu("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(pointer), pointer)(device)
    name = function("ggml_backend_buft_name", ctypes.c_char_p, pointer)
    found: dict[str, int] = {}
    while (handle := listed[len(found)]) is not None:
        found[name(handle).decode()] = handle
    return found


# ---- threads ---------------------------------------------------------------


class _ThreadPoolParams(ctypes.Structure):
    """struct ggml_threadpool_params"""

    _fields_ = (
        ("cpus", ctypes.c_bool * MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class ThreadPool:
    """CPU threads on chosen CPUs, with a priority. `handle` is a ggml_threadpool_t.

    Raises `BackendError` if the machine doesn't have the CPUs, or doesn't permit the priority,
    since ggml would log errors continuously.
    """

    def __init__(
        self, n_threads: int, cpus: Sequence[int], *, strict: bool, priority: int, poll: int
    ) -> None:
        if cpus:
            _check_cpus(cpus, n_threads)
        _check_priority(priority)
        params = _ThreadPoolParams(
            n_threads=n_threads, priority=priority, poll=poll, strict=strict, paused=False
        )
        for cpu in cpus:
            params.cpus[cpu] = True
        new = of_cpu("ggml_threadpool_new", ctypes.c_void_p, ctypes.c_void_p)
        self.handle: int | None = new(ctypes.byref(params))

    def close(self) -> None:
        """Frees the threads. The contexts that use them must be freed first."""
        if self.handle:
            of_cpu("ggml_threadpool_free", None, ctypes.c_void_p)(self.handle)
            self.handle = None


def _check_cpus(cpus: Sequence[int], n_threads: int) -> None:
    if not hasattr(os, "sched_setaffinity"):  # macOS, Windows: left to ggml
        return
    usable = os.sched_getaffinity(0) & set(cpus)
    if not usable:
        raise BackendError("--cpu-mask, --cpu-range: this process may not use any of these CPUs")
    if n_threads == 1:
        # ggml only places threads that it starts; a single thread is the calling one.
        os.sched_setaffinity(0, usable)


def _check_priority(priority: int) -> None:
    if priority <= 0 or not hasattr(os, "sched_setscheduler"):
        return
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        raise BackendError(f"--prio {priority}: this process may not raise its priority") from None
    os.sched_setscheduler(0, policy, param)
