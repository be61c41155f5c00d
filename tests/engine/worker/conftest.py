"""Shared fixtures of the worker's tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.planning import StepPlanner


@pytest.fixture(autouse=True)
def _close_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the engines that a test leaves open: hundreds of KV caches would pile up."""
    still_open: list[Engine] = []
    begin, close = Engine.__init__, Engine.close

    def opening(self: Engine, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        still_open.append(self)

    def closing(self: Engine) -> None:
        if self in still_open:
            still_open.remove(self)
        close(self)

    monkeypatch.setattr(Engine, "__init__", opening)
    monkeypatch.setattr(Engine, "close", closing)
    yield
    for engine in still_open.copy():
        engine.close()


@pytest.fixture
def restoring_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model's states are restored even from a slow disk, although computing them takes a
    moment."""
    monkeypatch.setattr(StepPlanner, "_compute_seconds", lambda *_: 0.0)
