"""What every run of the tests shares: it neither reads nor writes the caches, nor follows the
settings, of whoever runs it."""

import os
import tempfile
from collections import Counter
from typing import Any

import pytest
from schemathesis.pytest.plugin import SchemathesisFunction

_SETTINGS = ("LLAMA_", "HF_", "HUGGINGFACE_", "MODEL_ENDPOINT")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--llama-cpp",
        metavar="FOLDER",
        help="llama.cpp's sources of the pinned version, for the tests that compare with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # of pytest-xdist: its environment is that of the process that started it
    directory = tempfile.TemporaryDirectory(prefix="specllama-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(directory.cleanup)
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ.update(XDG_CACHE_HOME=directory.name, LOCALAPPDATA=directory.name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives every test an id of its own.

    pytest-xdist knows a test by its id, and runs only one of those that have the same. Since
    pytest 9.2, Schemathesis' tests of all operations have that of their function.
    """
    for item in items:
        if isinstance(item, SchemathesisFunction) and item.parent is not None:
            _set_id(item, f"{item.parent.nodeid}::{item.name}")
    twice = [name for name, n in Counter(item.nodeid for item in items).items() if n > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the same id: {', '.join(twice)}")


def _set_id(item: Any, nodeid: str) -> None:
    if item.nodeid != nodeid:
        item._id = type(item.id).parse(nodeid)
