"""Models from registries: the list, and removals."""

import shutil
from pathlib import Path

import pytest

from specllama.engine.catalog.registry_cache import (
    RegistryModel,
    read_version,
    registry_model,
    registry_models,
    remove_registry_model,
)

HOST = "models--localhost_me-0123456789"
ONE, OTHER = "1" * 64, "2" * 64
TAG = "localhost/me/tiny:8bit"


def keep(cache: Path, name: str, digest: str = ONE, content: bytes = b"GGUF") -> Path:
    """Creates the files of a download, and returns the path of the model."""
    folder = cache / HOST
    for place in ("versions", "manifests", "blobs", f"snapshots/{digest}"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    blob = folder / "blobs" / f"{len(content)}"
    blob.write_bytes(content)
    model = folder / "snapshots" / digest / "model.gguf"
    if not model.is_symlink():
        model.symlink_to(Path("../../blobs") / blob.name)
    (folder / "manifests" / digest).write_bytes(b"{}")
    (folder / "versions" / name.rpartition(":")[2]).write_text(f"{digest}\n{name}")
    return model


def names(cache: Path) -> list[str]:
    return [model.name for model in registry_models(cache)]


def files(cache: Path) -> set[str]:
    folder = cache / HOST
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return {path.relative_to(folder).as_posix() for path in paths}


def test_models_are_listed(tmp_path: Path) -> None:
    assert registry_models(tmp_path / "none") == []
    path = keep(tmp_path, TAG)
    assert registry_models(tmp_path) == [RegistryModel(name=TAG, path=str(path), size=4)]
    path.resolve().unlink()
    assert registry_models(tmp_path) == []


@pytest.mark.parametrize(
    "text", ["", ONE, f"{ONE}\n", f"{ONE}\nNonsense", f"../{ONE[3:]}\n{TAG}", f"{ONE}\n\x1b[2J"]
)
def test_files_that_are_no_version_are_left_out(text: str, tmp_path: Path) -> None:
    keep(tmp_path, TAG)
    (tmp_path / HOST / "versions" / "8bit").write_text(text)
    assert registry_models(tmp_path) == []
    (tmp_path / HOST / "versions" / "8bit").write_bytes(b"\xff")
    assert registry_models(tmp_path) == []


def test_a_model_has_a_name_of_several_spellings(tmp_path: Path) -> None:
    keep(tmp_path, "ai/tiny:latest")
    for text in ("tiny", "ai/tiny", "docker.io/tiny:latest"):
        model = registry_model(tmp_path, text)
        assert model is not None
        assert model.name == "ai/tiny:latest"
    assert registry_model(tmp_path, "tiny:8bit") is None
    assert registry_model(tmp_path, "No Name") is None


def test_a_model_goes_with_its_contents_and_the_others_stay(tmp_path: Path) -> None:
    keep(tmp_path, TAG)
    keep(tmp_path, "localhost/me/tiny:4bit", OTHER, b"GGUF 4")
    before = files(tmp_path)
    remove_registry_model(tmp_path, TAG)
    gone = {"versions/8bit", f"manifests/{ONE}", f"snapshots/{ONE}/model.gguf", "blobs/4"}
    assert before - files(tmp_path) == gone
    assert names(tmp_path) == ["localhost/me/tiny:4bit"]


def test_a_model_with_two_names_stays_for_the_second(tmp_path: Path) -> None:
    path = keep(tmp_path, TAG)
    keep(tmp_path, "localhost/me/tiny:latest")
    remove_registry_model(tmp_path, TAG)
    assert path.read_bytes() == b"GGUF"
    assert names(tmp_path) == ["localhost/me/tiny:latest"]


def test_a_tags_former_model_is_removed_as_well(tmp_path: Path) -> None:
    keep(tmp_path, TAG, OTHER, b"GGUF 4")
    keep(tmp_path, TAG)
    remove_registry_model(tmp_path, TAG)
    assert files(tmp_path) == set()


def test_a_download_that_is_under_way_stays(tmp_path: Path) -> None:
    """It has no manifest yet."""
    keep(tmp_path, TAG)
    under_way = keep(tmp_path, "localhost/me/tiny:4bit", OTHER, b"GGUF 4")
    for place in (f"manifests/{OTHER}", "versions/4bit"):
        (tmp_path / HOST / place).unlink()
    remove_registry_model(tmp_path, TAG)
    assert under_way.read_bytes() == b"GGUF 4"


def test_another_name_is_unknown(tmp_path: Path) -> None:
    keep(tmp_path, TAG)
    before = files(tmp_path)
    for name in ("localhost/me/tiny", "8bit", "*", ""):
        remove_registry_model(tmp_path, name)
    assert files(tmp_path) == before


@pytest.mark.parametrize("place", ["versions", "manifests", "snapshots", f"snapshots/{ONE}"])
def test_links_out_of_the_cache_are_not_followed(place: str, tmp_path: Path) -> None:
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    keep(cache, TAG)
    inside = cache / HOST / place
    shutil.move(inside, elsewhere)
    inside.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    with pytest.raises(PermissionError, match="not in the cache"):
        remove_registry_model(cache, TAG)
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_a_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "v").write_text(f"{ONE}\n{TAG}")
    assert read_version(tmp_path / "v") == (ONE, TAG)
