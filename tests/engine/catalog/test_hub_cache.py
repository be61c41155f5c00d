"""The models in the hub's cache, and their names."""

import os
from pathlib import Path

import pytest

from specllama.engine.catalog.hub_cache import cached_models, named
from tests.support.model_files import GGUF, cache, write


def test_cached_models_and_their_names(hub: Path) -> None:
    cache(hub, "u/r", "x-Q4_0.gguf", "x-q8_0.gguf", "mmproj-x-F16.gguf", "README.md")
    cache(hub, "u/split", "Q2_K/x-Q2_K-00001-of-00002.gguf", "Q2_K/x-Q2_K-00002-of-00002.gguf")
    cache(hub, "u/plain", "x.gguf")
    (hub / "datasets--u--d").mkdir()
    found = {model.name: model for model in cached_models(hub)}
    assert list(found) == ["u/plain", "u/r:Q4_0", "u/r:Q8_0", "u/split:Q2_K"]
    assert found["u/split:Q2_K"].size == 2 * len(GGUF)
    assert Path(found["u/r:Q8_0"].path).name == "x-q8_0.gguf"
    assert Path(found["u/r:Q8_0"].projector).name == "mmproj-x-F16.gguf"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("u/r:q8_0", "u/r:Q8_0"),
        ("u/r", "u/r:Q4_K_M"),
        ("u/other", "u/other:F16"),
        ("u/r:Q2_K", None),
        ("u/none", None),
        ("u/r:", None),
    ],
)
def test_which_cached_model_is_meant(hub: Path, name: str, meant: str | None) -> None:
    cache(hub, "u/r", "x-F16.gguf", "x-Q4_K_M.gguf", "x-Q8_0.gguf")
    cache(hub, "u/other", "x-F16.gguf", "x-F32.gguf")
    found = named(cached_models(hub), name)
    assert (found.name if found else None) == meant


def test_incomplete_files_in_the_cache(hub: Path, caplog: pytest.LogCaptureFixture) -> None:
    split = cache(hub, "u/split", "x-Q2_K-00001-of-00002.gguf", "x-Q2_K-00002-of-00002.gguf")
    (split / "x-Q2_K-00002-of-00002.gguf").resolve().unlink()
    broken = cache(hub, "u/broken", "x-Q2_K.gguf", "y-Q8_0.gguf")
    (broken / "x-Q2_K.gguf").resolve().unlink()
    no_ref = cache(hub, "u/unknown", "x-Q2_K.gguf").parent.parent / "refs/main"
    no_ref.write_text("../../..")
    cache(hub, "u/branch", "x-Q2_K.gguf", ref="other")
    write(hub, "models--file--here", "models--u--norefs/snapshots/x.gguf")
    os.mkfifo(hub / "models--u--unknown/refs/other")
    cache(hub, "u/odd..name", "x-Q2_K.gguf")
    assert [model.name for model in cached_models(hub)] == ["u/branch:Q2_K", "u/broken:Q8_0"]
    assert len(caplog.messages) == 1
    assert "00002-of-00002" in caplog.text


def test_no_cache(hub: Path) -> None:
    assert cached_models(hub / "missing") == []
