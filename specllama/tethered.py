"""`python -m specllama.tethered`: specllama, until its standard input ends.

The parent process holds the other end of the pipe. When the parent ends, in any way, the server
ends, too.
"""

import os
import signal
import sys
import threading

from specllama.cli import main


def _end_with_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, name="tether", daemon=True).start()
    sys.exit(main())
