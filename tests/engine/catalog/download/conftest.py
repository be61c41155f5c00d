"""A hub to download from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub, serving


@pytest.fixture(scope="module")
def running_hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An empty hub without faults, and an empty cache in tmp_path."""
    running_hub.reset()
    for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "MODEL_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    return running_hub


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled download stays as it is, instead of being tried again."""
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "600")
