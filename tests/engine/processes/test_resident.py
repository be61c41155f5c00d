"""The memory of a process."""

import sys

import pytest

from engine.processes.resident import resident


@pytest.mark.skipif(sys.platform != "linux", reason="the platform doesn't tell")
def test_memory_that_is_used_is_seen() -> None:
    before = resident()
    used = bytearray(b"x") * (64 << 20)
    assert resident() - before > len(used) // 2
