"""What every run of the tests shares: it neither reads nor writes the caches, nor follows the
settings, of whoever runs it."""

import os
import tempfile

import pytest

_SETTINGS = ("LLAMA_", "HF_", "HUGGINGFACE_", "MODEL_ENDPOINT")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # of pytest-xdist: its environment is that of the process that started it
    directory = tempfile.TemporaryDirectory(prefix="specllama-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(directory.cleanup)
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ.update(XDG_CACHE_HOME=directory.name, LOCALAPPDATA=directory.name)
