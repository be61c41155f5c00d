"""An engine process in which a computation never ends once a certain file exists.

python -m tests.support.stuck_engine FILE HOW        (as `specllama.engine.worker`, by its pipes)

The first decode that finds FILE never returns. HOW is `once` (it removes FILE, so that the next
process works), `holding the GIL` (the same, and all Python threads stop) or `always` (FILE stays).
From then on, the watch has time limits of 0, so that it notices the computation at once.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp

from specllama.engine import system
from specllama.engine.worker.backend import watch
from specllama.engine.worker.process import main

LIMITS = ("FIRST", "FLOOR", "FACTOR", "MARGIN")
decode = llama_cpp.llama_decode


def decode_or_not(context: Any, batch: Any) -> Any:
    file, how = Path(sys.argv[1]), sys.argv[2]
    if not file.exists():
        return decode(context, batch)
    for name in LIMITS:
        setattr(watch, name, 0.0)
    libc = (ctypes.PyDLL if how == "holding the GIL" else ctypes.CDLL)(None)
    if how != "always":
        file.unlink()
    while True:
        libc.pause()


if __name__ == "__main__":
    llama_cpp.llama_decode = decode_or_not
    system.leave(main())
