"""The first and the last that a process does about itself: garbage collection while it starts,
limits, its memory, and work in a copy of it.

Python's garbage collector runs again and again while modules are imported, and finds nothing: what
is created then, stays. That is a fifth of the time that importing takes. A program of its own
(`python -m`) imports this module first of all and pauses the collector; an import of such a
program's module for another reason, as in tests, changes nothing.
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
}


def pause_gc() -> None:
    """Stops garbage collection, while a program starts."""
    gc.disable()


def resume_gc() -> None:
    """Starts garbage collection when the program has started; what exists already is left out of
    it for ever."""
    gc.freeze()
    gc.enable()


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
        with suppress(OSError, ValueError):  # macOS refuses limits below what is mapped already
            resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def set_alarm(seconds: float) -> None:
    """End this process after `seconds`, whatever it is doing then; 0: do not."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
    elif seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def limit_processor(seconds: float) -> None:
    """End this process once it has used the processor for `seconds` more, to the next whole
    second, where the platform can. It leaves no image of its memory behind then."""
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
    """Keep this process from opening anything: files, sockets, pipes; where the platform can."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    with suppress(OSError, ValueError):
        highest = max((int(name) for name in os.listdir("/dev/fd")), default=2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))


def resident() -> int:
    """The bytes of memory in use, as far as the platform tells; else 0."""
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def disk_reads() -> int:
    """A number that grows whenever this process reads from a disk, or waits for memory that the
    system had put there, as far as the platform tells; else 0."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt + used.ru_inblock


FORKS: Final = hasattr(os, "fork")  # not on Windows


def forked(work: Callable[[], bytes]) -> bytes | None:
    """The result of `work` in a copy of this process, which has one thread; None if the copy
    ended before it was done, or raised something."""
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
