"""A process's control of itself: garbage collection during its start, limits, memory figures, and
work in a forked copy.

Python's garbage collector runs repeatedly while modules are imported, and finds no garbage, since
imported objects stay. It takes a fifth of the import time. Each program (`python -m`) imports this
module first, which pauses the collector. If a program's module is imported otherwise, as in tests,
the collector isn't paused.
"""

import faulthandler
import gc
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_PROGRAMS = {
    "specllama.engine.helpers.render.render_main",
    "specllama.engine.helpers.decode.decode_main",
    "specllama.engine.helpers.fetch.fetch_main",
    "specllama.engine.worker.__main__",
    "specllama.engine.helpers.trial.trial_main",
    "specllama.engine.helpers.check.check_main",
    "specllama.engine.helpers.files.files_main",
    "specllama.engine.helpers.tools.tools_main",
}


_RARELY = 1000
"""The number of collections of the middle generation before one of all objects."""


def pause_gc() -> None:
    """Stops garbage collection during the start of a program."""
    gc.disable()


def resume_gc() -> None:
    """Resumes garbage collection after the start. Objects that exist by then are permanently
    excluded from it.

    A collection of all other objects takes up to a second if thousands of requests wait, and stops
    every stream meanwhile. Requests leave no cycles of references, so it is rare.
    """
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _RARELY)
    gc.enable()


def release_memory() -> None:
    """Frees unreachable objects and returns free memory to the system, where the platform can. This
    takes a tenth of a second after thousands of requests at once."""
    gc.collect()
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # musl has no `malloc_trim`
            ctypes.CDLL(None).malloc_trim(0)


_spec = getattr(sys.modules["__main__"], "__spec__", None)
if _spec is not None and _spec.name in _PROGRAMS:
    pause_gc()


def limit_memory(n_bytes: int) -> None:
    """Limit the address space to `n_bytes`, where the platform can."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > n_bytes:
        with suppress(OSError, ValueError):  # macOS refuses limits below the mapped size
            resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def set_alarm(seconds: float) -> None:
    """End this process after `seconds`, even if it is busy; 0 cancels the alarm."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
    elif seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def limit_processor(seconds: float) -> None:
    """End this process after `seconds` more of CPU time (rounded up to a whole second), without a
    core dump, where the platform supports it."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(
            resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )


def limit_descriptors() -> None:
    """Prevent this process from opening files, sockets and pipes, where the platform supports
    it."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    with suppress(OSError, ValueError):
        highest = max((int(name) for name in os.listdir("/dev/fd")), default=2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))


def resident() -> int:
    """The resident memory in bytes; 0 if the platform doesn't report it."""
    return _resident()[0]


def private() -> int:
    """The resident memory without mapped files and without memory that is shared with other
    processes, in bytes; 0 if the platform doesn't report it."""
    every, shared = _resident()
    return every - shared


def _resident() -> tuple[int, int]:
    """The resident memory in bytes, and the part of it that is mapped or shared."""
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        _, every, shared, *_ = map(int, file.read().split())
        return every * (page := os.sysconf("SC_PAGE_SIZE")), shared * page
    return 0, 0


def disk_reads() -> int:
    """A counter that grows whenever this process reads from a disk, or waits for swapped memory; 0
    if the platform doesn't report it."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt + used.ru_inblock


FORKS: Final = hasattr(os, "fork")  # not on Windows


def forked(work: Callable[[], bytes]) -> bytes | None:
    """The result of `work`, run in a forked copy of this process, which must have a single thread.
    None if the copy ended early or raised an exception."""
    source, sink = os.pipe()
    if not (pid := os.fork()):
        code = 1
        try:
            os.close(source)
            with open(sink, "wb") as pipe:
                pipe.write(work())
            code = 0
        finally:
            os._exit(code)
    os.close(sink)
    with open(source, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(pid, 0)
    return result if status == 0 else None
