"""Preset files of repositories on the hub."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from specllama.engine.catalog.presets import RemotePreset
from specllama.engine.formats.gguf_names import MAX_PRESET
from specllama.engine.helpers.download.downloader import find_remote_preset
from specllama.engine.options import OptionError
from tests.support.downloads import MODEL, REPOSITORY, blobs, run
from tests.support.hub import Hub
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow

TEXT = b"[a]\nhf-repo = maker/tiny-GGUF\n"


def found(repository: str = REPOSITORY, **options: object) -> RemotePreset | None:
    wanted = model_options(hf_repo=repository, **options)
    return asyncio.run(find_remote_preset(wanted, os.environ))


def test_it_is_downloaded_alone(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"preset.ini": TEXT, "x-Q8_0.gguf": MODEL, "a/preset.ini": b"[b]"})
    preset = found(REPOSITORY + ":Q8_0")
    assert preset is not None
    assert preset.repository == REPOSITORY
    assert Path(preset.path).read_bytes() == TEXT
    assert Path(preset.path).is_relative_to(tmp_path / "huggingface")
    assert len(blobs(tmp_path)) == 1


def test_a_repository_without_one(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "a/preset.ini": TEXT})
    assert found() is None
    assert not blobs(tmp_path)


def test_it_is_looked_for_again(hub: Hub) -> None:
    hub.add(REPOSITORY, {"preset.ini": TEXT})
    found()
    hub.add(REPOSITORY, {"preset.ini": b"[new]\n"})
    preset = found()
    assert preset is not None
    assert Path(preset.path).read_bytes() == b"[new]\n"
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    assert found() is None


def test_no_request_is_sent_for_a_model_in_the_cache(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    run()
    hub.requests.clear()
    assert found() is None
    assert found(model="x.gguf") is None
    assert not hub.requests


def test_offline_uses_the_cache(hub: Hub) -> None:
    hub.add(REPOSITORY, {"preset.ini": TEXT})
    online = found()
    hub.requests.clear()
    assert found(offline=True) == online
    assert found("maker/other", offline=True) is None
    assert not hub.requests


def test_without_the_hub_the_cache_is_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(REPOSITORY, {"preset.ini": TEXT})
    online = found()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # "discard": no server listens there
    with caplog.at_level(logging.WARNING):
        assert found() == online
    assert "the files in the cache are used" in caplog.text


def test_an_unknown_repository(hub: Hub) -> None:
    with pytest.raises(OptionError, match="maker/nothing"):
        found("maker/nothing")


def test_one_that_is_too_large(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"preset.ini": b";" * (MAX_PRESET + 1)})
    with pytest.raises(OptionError, match="more than"):
        found()
    assert not blobs(tmp_path)


def test_one_that_arrives_damaged_is_not_taken(hub: Hub) -> None:
    hub.add(REPOSITORY, {"preset.ini": TEXT})
    hub.faults.n_damaged = 2
    with pytest.raises(OptionError, match="checksum"):
        found()
