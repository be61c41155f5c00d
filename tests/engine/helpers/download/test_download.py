"""Files that arrive damaged, and hubs that mean harm."""

import hashlib
from pathlib import Path

import pytest

from tests.support.downloads import MODEL, PROJECTOR, REPOSITORY, blobs, failure, run
from tests.support.hub import Hub

pytestmark = pytest.mark.slow


def test_a_damaged_download_is_repeated(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.n_damaged = 1
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL
    assert len(hub.downloads()) == 2


def test_a_download_that_is_damaged_twice_is_deleted(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.n_damaged = 2
    assert "checksum" in failure()
    assert blobs(tmp_path) == []


def test_a_damaged_rest_of_an_earlier_download_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    folder = tmp_path / "huggingface" / "hub" / "models--maker--tiny-GGUF" / "blobs"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(MODEL).hexdigest()
    (folder / f"{digest}.incomplete").write_bytes(b"GGUF" + bytes(1000))
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL
    assert [asked.range for asked in hub.downloads()] == [f"bytes=1004-{len(MODEL) - 1}", ""]


def test_files_that_are_no_gguf_are_rejected(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": b"<html>" + bytes(100_000)})
    assert "not a GGUF file" in failure()
    assert [path.stat().st_size for path in blobs(tmp_path)] == [0]


@pytest.mark.parametrize(
    "name",
    [
        "../../../../outside-Q4_K_M.gguf",
        "/outside-Q4_K_M.gguf",
        "..\\outside-Q4_K_M.gguf",
        "C:\\outside-Q4_K_M.gguf",
        "a/../../b-Q4_K_M.gguf",
        "a//b-Q4_K_M.gguf",
        "new\nline-Q4_K_M.gguf",
    ],
)
def test_hostile_names_are_passed_over(hub: Hub, tmp_path: Path, name: str) -> None:
    repository = hub.add(REPOSITORY, {"evil.gguf": PROJECTOR, "good-Q8_0.gguf": MODEL})
    repository.described_as["evil.gguf"] = name
    found, _ = run()
    assert found.engine.model.model.endswith("/good-Q8_0.gguf")
    cache = tmp_path / "huggingface"
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and cache not in p.parents]
    assert outside == []


def test_hostile_names_alone_are_no_model(hub: Hub) -> None:
    repository = hub.add(REPOSITORY, {"evil.gguf": MODEL})
    repository.described_as["evil.gguf"] = "../evil.gguf"
    assert "no GGUF files" in failure()
    assert hub.downloads() == []


@pytest.mark.parametrize("field", ["sha", "digest", "siblings"])
def test_a_hub_that_talks_nonsense(hub: Hub, tmp_path: Path, field: str) -> None:
    repository = hub.add(REPOSITORY, {"x.gguf": MODEL})
    repository.nonsense = field
    assert failure()
    assert hub.downloads() == []
    assert not (tmp_path / "huggingface" / "hub").exists()
