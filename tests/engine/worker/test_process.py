"""The engine process at its start."""

import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.engine.shipped import model_path
from specllama.engine.worker.backend import exactness
from specllama.engine.worker.cache.origin import Identity
from specllama.engine.worker.process import _disable_debugger, _load
from tests.support.options_support import engine_options


@pytest.mark.parametrize(("level", "expected"), [(logging.INFO, "1"), (logging.DEBUG, None)])
def test_backtraces_of_assertions_need_the_most_verbose_log(
    level: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_NO_BACKTRACE", "")  # so that it is put back
    monkeypatch.delenv("GGML_NO_BACKTRACE")
    _disable_debugger(level)
    assert os.environ.get("GGML_NO_BACKTRACE") == expected


@pytest.mark.parametrize("device", [True, False])
def test_slot_files_get_the_engines_options(
    *, device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--reproducible auto` is off where a GPU may have layers: files say what their cache is."""
    monkeypatch.setattr(exactness, "devices", lambda: ["a GPU"] * device)
    link: Any = SimpleNamespace(send=lambda _: None)
    given = engine_options(model=str(model_path()), ctx_size=256, threads=1)
    loaded = _load(link, given)
    assert loaded is not None
    engine, options = loaded
    assert given.context.reproducible == "auto"
    assert options.is_reproducible() is not device
    assert Identity.of(options).fits(Identity.of(given).origin(())) is not device
    engine.close()
    engine.model.close()
