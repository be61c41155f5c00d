"""The memory of this process."""

import os
from contextlib import suppress


def resident() -> int:
    """The bytes of memory in use, as far as the platform tells; else 0."""
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
