"""A hub and a registry to download from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract_tests.kit.server import SECONDS
from tests.support import registry as registries
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
    # A stalled download stays stalled, and a slow one is not retried.
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", str(round(SECONDS)))
    return running_hub


@pytest.fixture(scope="module")
def running_registry() -> Iterator[registries.Registry]:
    with registries.serving() as registry:
        yield registry


@pytest.fixture
def registry(
    running_registry: registries.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> registries.Registry:
    """An empty registry without faults, and an empty cache in tmp_path."""
    running_registry.reset()
    for name in ("LLAMA_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", str(round(SECONDS)))
    monkeypatch.setattr("specllama.engine.helpers.download.download.BACKOFF", (0.0,) * 4)
    return running_registry
