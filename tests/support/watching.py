"""Helpers for the tests of watched computations."""

import pytest

from specllama.engine.worker.backend import watch

LIMITS = ("FIRST", "FLOOR", "FACTOR", "MARGIN")


def without_limits(monkeypatch: pytest.MonkeyPatch, watched: watch.ThreadWatch) -> None:
    """Reports each computation that still runs at the first check, without reading the disk."""
    for name in LIMITS:
        monkeypatch.setattr(watch, name, 0.0)
    monkeypatch.setattr(watched, "_disk_reads", lambda: 0)
    monkeypatch.setattr(watched, "_n_reads", 0)
