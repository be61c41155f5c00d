"""Selects the plugins of pytest when the kit runs it. This module imports nothing of the kit,
because pytest has to be there first to rewrite assertions."""

import contextlib
import os
from collections.abc import Generator

import pytest


@contextlib.contextmanager
def without_other_plugins() -> Generator[None]:
    """Disables all other installed plugins, so that the tests run alike everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.delenv("PYTEST_PLUGINS", raising=False)
        patch.setitem(os.environ, "PYTHONWARNINGS", "ignore")
        yield
