"""What the tests of generation share."""

import pytest

from engine.worker.backend import Context


@pytest.fixture(params=[False, True], ids=["", "overlap"])
def overlaps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both orders of a step: texts before the next one is launched, or while it computes."""
    value: bool = request.param
    monkeypatch.setattr(Context, "is_asynchronous", value)
    return value
