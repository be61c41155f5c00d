"""Shared fixtures of the tests of generation."""

import pytest

from specllama.engine.worker.backend import Context


@pytest.fixture(params=[False, True], ids=["in turn", "overlap"])
def orders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test twice: texts are made before the next step is launched, or while it computes."""
    monkeypatch.setattr(Context, "is_asynchronous", request.param)
