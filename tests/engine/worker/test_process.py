"""The engine process at its start."""

import logging
import os

import pytest

from engine.worker.process import _die_quickly


@pytest.mark.parametrize(("level", "expected"), [(logging.INFO, "1"), (logging.DEBUG, None)])
def test_backtraces_of_assertions_are_for_those_who_want_everything(
    level: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_NO_BACKTRACE", "")  # so that it is put back
    monkeypatch.delenv("GGML_NO_BACKTRACE")
    _die_quickly(level)
    assert os.environ.get("GGML_NO_BACKTRACE") == expected
