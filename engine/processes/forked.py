"""Work in a copy of this process, which may end without harm to it."""

import os
from collections.abc import Callable
from typing import Final

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
