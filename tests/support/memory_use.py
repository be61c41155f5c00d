"""The memory of this process."""

import os


def resident() -> int:
    """Returns the resident bytes; 0 on systems that don't report them."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
