"""Files of file URLs: those below one directory, and no others."""

import os
from pathlib import Path

import pytest

from specllama.engine.helpers.fetch.fetch_jobs import UnfetchableError
from specllama.engine.helpers.fetch.fetch_main import read


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-2").mkdir()
    (tmp_path / "media-2" / "secret").write_bytes(b"secret")
    inside = tmp_path / "media"
    (inside / "deep").mkdir(parents=True)
    (inside / "a.png").write_bytes(b"pixels")
    (inside / "deep" / "b c.png").write_bytes(b"deep")
    (inside / "%41.png").write_bytes(b"percent")
    return inside


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("a.png", b"pixels"),
        ("/a.png", b"pixels"),
        ("deep/b c.png", b"deep"),
        ("deep//b c.png", b"deep"),
        ("./a.png", b"pixels"),
        ("%41.png", b"percent"),
    ],
)
def test_paths_below_it(directory: Path, path: str, data: bytes) -> None:
    assert read(f"file://{path}", str(directory), 10) == data


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", ".", "..", "../secret", "deep/../../secret", "/../secret", "deep/../a.png"),
        *("a.png ", " a.png", "a.png.", "a\0.png", "a\n", "C:/a", "a?b", "a*", "a|b", '"a"'),
        *("\uff0e\uff0e/secret", "..\u2215secret", "\ud800", "x" * 256),
        *("link", "link/secret", "directly", "sibling/secret", "turning/media/../secret"),
    ],
)
def test_paths_that_are_not_allowed(directory: Path, path: str) -> None:
    (directory / "link").symlink_to(directory.parent)
    (directory / "directly").symlink_to(directory.parent / "secret")
    (directory / "sibling").symlink_to(directory.parent / "media-2")
    (directory / "turning").symlink_to("..")
    with pytest.raises(UnfetchableError, match="not allowed"):
        read(f"file://{path}", str(directory), 10)


def test_links_that_stay_below_it(directory: Path) -> None:
    (directory / "link.png").symlink_to(directory / "deep" / "b c.png")
    (directory / "folder").symlink_to("deep")
    assert read("file://link.png", str(directory), 10) == b"deep"
    assert read("file://folder/b c.png", str(directory), 10) == b"deep"


def test_the_directory_itself_may_be_a_link(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(directory)
    assert read("file://a.png", str(tmp_path / "elsewhere"), 10) == b"pixels"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_addresses_without_a_file(directory: Path) -> None:
    os.mkfifo(directory / "pipe")
    (directory / "nowhere").symlink_to(directory / "missing")
    (directory / "round").symlink_to("round")
    for name in ("missing", "deep", "pipe", "a.png/x", "nowhere", "round"):
        with pytest.raises(UnfetchableError, match="does not exist, or can't be read"):
            read(f"file://{name}", str(directory), 10)


def test_as_many_bytes_as_there_may_be(directory: Path) -> None:
    assert read("file://a.png", str(directory), 6) == b"pixels"
    with pytest.raises(UnfetchableError, match="more than the 5 bytes"):
        read("file://a.png", str(directory), 5)
