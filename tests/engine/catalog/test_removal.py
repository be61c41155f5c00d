"""Removals from the hub's cache, and above all the files that have to stay."""

from pathlib import Path

import pytest

from specllama.engine.catalog.hub_cache import cached_models
from specllama.engine.catalog.removal import is_removable, remove
from tests.support.model_files import COMMIT, cache, write


def names(hub: Path) -> list[str]:
    return [model.name for model in cached_models(hub)]


def files(hub: Path) -> set[str]:
    return {
        path.relative_to(hub).as_posix()
        for path in hub.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def removable(hub: Path) -> dict[str, bool]:
    return {model.name: is_removable(hub, model) for model in cached_models(hub)}


def test_a_model_goes_with_its_contents_and_the_others_stay(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "x-F16.gguf", "mmproj-BF16.gguf")
    cache(hub, "u/s", "x-Q8_0.gguf")
    before = files(hub)
    assert removable(hub) == {"u/r:F16": True, "u/r:Q8_0": True, "u/s:Q8_0": True}
    remove(hub, "u/r:Q8_0")
    gone = {f"models--u--r/snapshots/{COMMIT}/x-Q8_0.gguf", "models--u--r/blobs/0"}
    assert before - files(hub) == gone
    assert names(hub) == ["u/r:F16", "u/s:Q8_0"]


@pytest.mark.parametrize("name", ["u/r", "u/r:q8_0", "u/r:Q4_0", "r:Q8_0", "../u/r", "", "*"])
def test_another_name_is_unknown(hub: Path, name: str) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    before = files(hub)
    remove(hub, name)
    assert files(hub) == before


def test_a_projector_goes_with_the_last_model_that_has_it(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "x-F16.gguf", "mmproj-Q8_0.gguf", "mmproj-F16.gguf")
    remove(hub, "u/r:Q8_0")
    left = {"refs/main", "blobs/1", "blobs/3"}
    left |= {f"snapshots/{COMMIT}/{name}" for name in ("x-F16.gguf", "mmproj-F16.gguf")}
    assert files(hub) == {f"models--u--r/{name}" for name in left}
    remove(hub, "u/r:F16")
    assert files(hub) == {"models--u--r/refs/main"}


def test_a_projector_that_an_unfinished_model_will_have_stays(hub: Path) -> None:
    parts = [f"y-F16-0000{i}-of-00002.gguf" for i in (1, 2)]
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf", "mmproj-F16.gguf", *parts)
    (snapshot / parts[1]).unlink()
    remove(hub, "u/r:Q8_0")
    assert {path.name for path in snapshot.iterdir()} == {"mmproj-F16.gguf", parts[0]}


def test_a_projector_of_other_models_stays(hub: Path) -> None:
    """It is in a folder that the removed one doesn't read."""
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf", "deep/y-F16.gguf", "deep/mmproj-F16.gguf")
    remove(hub, "u/r:Q8_0")
    assert {path.name for path in (snapshot / "deep").iterdir()} == {
        "y-F16.gguf",
        "mmproj-F16.gguf",
    }


def test_all_parts_and_all_files_of_the_name(hub: Path) -> None:
    parts = [f"x-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    cache(hub, "u/r", *parts, "deep/y-Q8_0.gguf")
    remove(hub, "u/r:Q8_0")
    assert files(hub) == {"models--u--r/refs/main"}


def test_older_commits_lose_it_too(hub: Path) -> None:
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf", "x-F16.gguf")
    old = snapshot.parent / ("f" * 40)
    write(snapshot.parents[1] / "blobs", "old")
    old.mkdir()
    (old / "x-Q8_0.gguf").symlink_to("../../blobs/old")
    remove(hub, "u/r:Q8_0")
    assert not list(old.iterdir())
    assert not (snapshot.parents[1] / "blobs" / "old").exists()
    assert names(hub) == ["u/r:F16"]


def test_contents_that_another_file_has_too_stay(hub: Path) -> None:
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf")
    (snapshot / "y-F16.gguf").symlink_to(snapshot.parents[1] / "blobs" / "0")
    remove(hub, "u/r:Q8_0")
    assert names(hub) == ["u/r:F16"]


def test_files_in_the_place_of_links(hub: Path) -> None:
    """As on systems without links."""
    snapshot = cache(hub, "u/r")
    write(snapshot, "x-Q8_0.gguf", "x-F16.gguf")
    assert removable(hub) == {"u/r:F16": True, "u/r:Q8_0": True}
    remove(hub, "u/r:F16")
    assert names(hub) == ["u/r:Q8_0"]


def test_the_target_of_a_link_outside_stays(hub: Path, tmp_path: Path) -> None:
    write(tmp_path, "mine-Q8_0.gguf")
    snapshot = cache(hub, "u/r")
    snapshot.mkdir(parents=True)
    (snapshot / "x-Q8_0.gguf").symlink_to(tmp_path / "mine-Q8_0.gguf")
    remove(hub, "u/r:Q8_0")
    assert not names(hub)
    assert (tmp_path / "mine-Q8_0.gguf").exists()


def test_contents_that_lie_elsewhere_stay(hub: Path, tmp_path: Path) -> None:
    """Somebody keeps the contents on another disk."""
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf")
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")
    remove(hub, "u/r:Q8_0")
    assert not names(hub)
    assert (tmp_path / "blobs" / "0").exists()


@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_folder_that_is_a_link(hub: Path, tmp_path: Path, above: int) -> None:
    """The commit's, that of all commits, or the repository's."""
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf")
    folder = (snapshot, *snapshot.parents)[above]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path)
    assert removable(hub) == {"u/r:Q8_0": False}
    with pytest.raises(PermissionError):
        remove(hub, "u/r:Q8_0")
    assert files(tmp_path) == before


def test_a_cache_that_is_reached_over_a_link(hub: Path, tmp_path: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    (tmp_path / "link").symlink_to(hub)
    assert removable(tmp_path / "link") == {"u/r:Q8_0": True}
    remove(tmp_path / "link", "u/r:Q8_0")
    assert not names(hub)
