"""Which plugins pytest has when the kit runs it. Nothing of the kit is imported here: pytest has to
be there before, to rewrite assertions."""

import contextlib
import os
from collections.abc import Generator

import pytest


@contextlib.contextmanager
def without_other_plugins() -> Generator[None]:
    """Whatever plugins are installed, the tests run alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.delenv("PYTEST_PLUGINS", raising=False)
        patch.setitem(os.environ, "PYTHONWARNINGS", "ignore")
        yield
