"""Limits that a helper process sets itself before it works on what others have made."""

import faulthandler
import math
import os
import signal
from contextlib import suppress


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
