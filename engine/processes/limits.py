"""Limits that a helper process sets itself before it works on what others have made."""

import faulthandler
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
