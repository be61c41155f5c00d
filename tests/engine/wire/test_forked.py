"""Work in a copy of the process."""

import subprocess
import sys

import pytest

from specllama.engine.wire.startup import FORKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FORKS, reason="there are no copies of processes"),
]

# A process of its own: that of the tests has threads.
PROGRAM = """
import os, signal
from specllama.engine.wire.startup import forked
kept = []
def large():
    kept.append(1)
    return bytes(1 << 20)
print(len(forked(large)), kept)
print(forked(lambda: os.kill(os.getpid(), signal.SIGKILL)))
print(forked(lambda: [][0]))
print(forked(lambda: b""))
"""


def test_the_result_or_none_and_nothing_is_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == [f"{1 << 20} []", "None", "None", "b''"]
