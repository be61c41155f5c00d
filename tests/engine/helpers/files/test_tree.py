"""Paths that would leave the directory of tools don't."""

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.helpers.files.files_jobs import ToolError
from specllama.engine.helpers.files.tree import MAX_PATH, Tree, unreal_devices

MOST = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file.txt").write_text("inside")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[Tree]:
    tree = Tree(str(root))
    yield tree
    tree.close()


@pytest.mark.parametrize(
    "path",
    ["a/file.txt", "./a/file.txt", "a/b/../file.txt", "a//file.txt", "missing/../a/file.txt"],
)
def test_paths_below_the_root(path: str, tree: Tree, root: Path) -> None:
    assert tree.read(path, MOST) == b"inside"
    assert tree.read(str(root / path), MOST) == b"inside"


def test_relative_paths_begin_at_the_directory(root: Path) -> None:
    tree = Tree(str(root), "a/b")
    assert tree.directory == str(root / "a" / "b")
    assert tree.read("../file.txt", MOST) == b"inside"
    tree.close()


@pytest.mark.parametrize(
    "path",
    ["..", "../outside.txt", "a/../../outside.txt", "/etc/passwd", "/", "a/b/../../../root-2", "~"],
)
def test_paths_out_of_the_root(path: str, tree: Tree, root: Path) -> None:
    for use in (tree.open_file, tree.open_directory, lambda path: tree.write(path, b"")):
        with pytest.raises(ToolError, match="outside of the directory of tools"):
            use(path)
    assert (root.parent / "outside.txt").read_text() == "secret"
    with pytest.raises(ToolError):
        Tree(str(root), "..")


@pytest.mark.parametrize("path", ["a" * (MAX_PATH + 1), "a\0b"])
def test_paths_that_are_none(path: str, tree: Tree) -> None:
    with pytest.raises(ToolError, match="too long, or has a null character"):
        tree.read(path, MOST)


@pytest.mark.parametrize(
    "target",
    [
        "../outside.txt",
        "{outside}",
        "a/../../outside.txt",
        "a/b/../../../outside.txt",
        "up/outside.txt",
        "/proc/self/environ",
        "loop",
    ],
)
def test_links_out_of_the_root_are_not_followed(target: str, tree: Tree, root: Path) -> None:
    outside = root.parent / "outside.txt"
    os.symlink("..", root / "up")
    os.symlink("loop", root / "loop")
    os.symlink(target.format(outside=outside), root / "link")
    with pytest.raises(ToolError, match=r"out of the directory|too many links"):
        tree.read("link", MOST)
    with pytest.raises(ToolError):
        tree.write("link", b"changed")
    with pytest.raises(ToolError):
        tree.write("link/new", b"changed")
    assert tree.kind("link") == ""
    assert outside.read_text() == "secret"


@pytest.mark.parametrize("target", ["a/file.txt", "{root}/a/file.txt", "a/b/../file.txt"])
def test_links_inside_of_the_root_are_followed(target: str, tree: Tree, root: Path) -> None:
    os.symlink(target.format(root=root), root / "link")
    os.symlink("a", root / "folder")
    assert tree.read("link", MOST) == b"inside"
    assert tree.read("folder/file.txt", MOST) == b"inside"
    tree.write("link", b"changed")
    assert (root / "link").is_symlink()
    assert (root / "a" / "file.txt").read_text() == "changed"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    place = socket.socket(socket.AF_UNIX)
    os.chdir(path.parent)  # the path of a socket is short
    place.bind(path.name)
    place.close()


def _null(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        pytest.skip("only an administrator can make devices")


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such files")
@pytest.mark.parametrize("make", [_fifo, _socket, _null, Path.mkdir])
def test_only_regular_files_are_opened(
    make: Callable[[Path], None], tree: Tree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    make(root / "thing")
    with pytest.raises(ToolError, match="not a regular file"):
        tree.read("thing", MOST)
    with pytest.raises(ToolError, match="not a regular file"):
        tree.write("thing", b"x")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc exists on Linux")
def test_files_of_the_kernel_are_not_opened() -> None:
    assert os.stat("/proc").st_dev in unreal_devices()
    tree = Tree("/")
    for path in ("/proc/self/environ", "/proc/version"):
        with pytest.raises(ToolError, match="files of the system"):
            tree.read(path, MOST)
        assert tree.kind(path) == ""
    tree.close()


def test_mounts_are_read(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
        "27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
        "garbage - proc\n"
    )
    assert unreal_devices(mounts) == {os.makedev(0, 20)}
    assert unreal_devices(tmp_path / "missing") == frozenset()


def test_large_files_are_not_read(tree: Tree, root: Path) -> None:
    with open(root / "large", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ToolError, match="file too large"):
        tree.read("large", MOST)


def test_writing_replaces_at_once_and_keeps_the_mode(tree: Tree, root: Path) -> None:
    path = root / "a" / "file.txt"
    path.chmod(0o640)
    os.link(path, root / "other name")
    tree.write("a/file.txt", b"new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (root / "other name").read_text() == "inside"
    tree.write("x/y/z.txt", b"deep")
    assert (root / "x" / "y" / "z.txt").read_text() == "deep"
    assert [each.name for each in root.rglob("*.part")] == []


def test_a_failed_write_leaves_the_old_file(
    tree: Tree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ToolError, match="no space left on device"):
        tree.write("a/file.txt", b"new")
    assert (root / "a" / "file.txt").read_text() == "inside"
    assert [each.name for each in root.rglob("*.part")] == []


def test_no_descriptor_stays_open(tree: Tree, root: Path) -> None:
    os.symlink("../..", root / "a" / "out")
    before = len(os.listdir("/dev/fd"))
    for path in ("a/file.txt", "a/out/x", "missing", "a", "..", "a/b/c/d"):
        tree.kind(path)
        for use in (lambda path: tree.read(path, MOST), lambda path: tree.write(path + "/x", b"")):
            with contextlib.suppress(ToolError):
                use(path)
    assert len(os.listdir("/dev/fd")) == before


NAMES = st.sampled_from(["a", "b", "file.txt", "..", ".", "", "link", "out", "/", "new"])


@given(path=st.lists(NAMES, max_size=8), target=st.lists(NAMES, min_size=1, max_size=6))
def test_no_path_reads_outside(
    path: list[str], target: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("top")
    root = top / "root"
    (root / "a" / "b").mkdir(parents=True)
    for place in (top, root.parent, root / "a", root):
        (place / "file.txt").write_text("inside" if place.is_relative_to(root) else "secret")
    os.symlink("/".join(target) or ".", root / "link")
    os.symlink("../..", root / "a" / "out")
    tree = Tree(str(root))
    with contextlib.suppress(ToolError):
        assert tree.read("/".join(path), MOST) == b"inside"
    try:
        tree.write("/".join(path), b"changed")
    except ToolError:
        pass
    finally:
        tree.close()
    assert (top / "file.txt").read_text() == "secret"
    assert {each.name for each in top.iterdir()} == {"root", "file.txt"}
