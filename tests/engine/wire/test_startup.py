"""The memory of a process."""

import gc
import subprocess
import sys
import weakref

import pytest

from specllama.engine.wire.startup import private, release_memory, resident

pytestmark = pytest.mark.slow

# In a process of its own: one that has run other tests gives memory back at any moment.
USES_MEMORY = """
from specllama.engine.wire.startup import resident

before = resident()
used = bytearray(b"x") * (64 << 20)
print(before, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the platform doesn't tell")
def test_memory_that_is_used_is_seen() -> None:
    command = [sys.executable, "-c", USES_MEMORY]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, after = map(int, output.split())
    assert 0 < before < after - (32 << 20)
    assert resident() > 0
    assert 0 < private() < resident()


class Part:
    def __init__(self) -> None:
        self.itself = self


def test_unreachable_objects_are_freed() -> None:
    collects = gc.isenabled()
    gc.disable()
    try:
        part = weakref.ref(Part())
        assert part() is not None
        release_memory()
        assert part() is None
    finally:
        if collects:
            gc.enable()
