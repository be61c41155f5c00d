"""The tools that search."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.helpers.files import searching
from specllama.engine.helpers.files.files_jobs import ToolError
from specllama.engine.helpers.files.searching import Glob, glob_search, grep_search
from specllama.engine.helpers.files.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    for path in ("top.txt", "a/mid.py", "a/b/deep.txt", "build/made.txt", ".git/config"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{path}\nsecond line\n")
    tree = Tree(str(tmp_path))
    yield tree
    tree.close()


def paths(tree: Tree, **arguments: Any) -> list[str]:
    return [each["path"] for each in glob_search(tree, {"path": ".", **arguments})["entries"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["top.txt", "a/mid.py", "a/b/deep.txt"]),
        ({"include": "*.txt"}, ["top.txt", "a/b/deep.txt"]),
        ({"include": "a/*.py"}, ["a/mid.py"]),
        ({"include": "b/*"}, ["a/b/deep.txt"]),
        ({"include": "/b/*"}, []),
        ({"exclude": "a/**"}, ["top.txt"]),
        ({"max_depth": 1}, ["top.txt"]),
        ({"max_depth": 2}, ["top.txt", "a/mid.py"]),
        ({"type": "dir"}, [".git", "a", "build", "a/b"]),
        ({"type": "all", "max_depth": 1}, ["top.txt", ".git", "a", "build"]),
        ({"path": "a/b"}, ["deep.txt"]),
        ({"path": "build"}, ["made.txt"]),
        ({"limit": 1}, ["top.txt"]),
    ],
)
def test_files_are_found(arguments: dict[str, Any], expected: list[str], tree: Tree) -> None:
    assert paths(tree, **arguments) == expected


def test_the_text_has_all_that_the_entries_have(tree: Tree) -> None:
    found = glob_search(tree, {"path": ".", "type": "all", "limit": 2})
    assert found["plain_text_response"] == (
        "top.txt\n.git/\n\n---\nTotal matches: 7\n"
        "[2 of 7 shown: narrow the pattern to see others]\n"
    )
    assert found["entries"][1] == {"path": ".git", "type": "dir"}
    assert found["base"] == tree.root


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"path": "top.txt"}, "is not a directory"),
        ({"path": "nothing"}, "does not exist"),
        ({"path": ".."}, "outside of the directory of tools"),
        ({"type": "bogus"}, "invalid type: bogus"),
        ({"limit": 0}, "invalid limit: 0"),
        ({"limit": "many"}, '"limit" must be an integer'),
        ({"include": 5}, '"include" must be a string'),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], reason: str, tree: Tree) -> None:
    with pytest.raises(ToolError, match=reason):
        glob_search(tree, {"path": ".", **arguments})


def test_links_and_odd_names_are_left_out(tree: Tree, tmp_path: Path) -> None:
    os.symlink("/etc", tmp_path / "etc")
    os.symlink("top.txt", tmp_path / "link.txt")
    os.mkfifo(tmp_path / "fifo.txt")
    (tmp_path / "two\nlines.txt").write_text("")
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("")
    assert paths(tree, type="all", max_depth=1) == ["top.txt", ".git", "a", "build"]


def test_a_listing_has_limits(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MAX_ENTRIES", 2)
    found = glob_search(tree, {"path": "."})
    assert "[not all directories were searched]" in found["plain_text_response"]


def test_a_deep_directory_is_listed_in_part(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "/".join(["d"] * 100)).mkdir(parents=True)
    found = glob_search(tree, {"path": ".", "type": "dir", "include": "d"})
    assert "Total matches: 64" in found["plain_text_response"]
    assert "[not all directories were searched]" in found["plain_text_response"]


def grep(tree: Tree, pattern: str, **arguments: Any) -> str:
    found = grep_search(tree, {"path": ".", "pattern": pattern, **arguments})
    text: str = found["plain_text_response"]
    return text.partition("\n---\n")[0]


@pytest.mark.parametrize(
    ("pattern", "arguments", "expected"),
    [
        (r"m.d\.py", {}, "a/mid.py:a/mid.py\n"),
        (r"m.d", {"literal": True}, ""),
        ("MID", {"ignore_case": True}, "a/mid.py:a/mid.py\n"),
        ("mid", {"return_line_numbers": True}, "a/mid.py:1:a/mid.py\n"),
        ("mid", {"context_lines": 1}, "a/mid.py:1:a/mid.py\na/mid.py-2-second line\n--\n"),
        ("second", {"include": "*.py"}, "a/mid.py:second line\n"),
        ("second", {"include": "*.py", "exclude": "a/*"}, ""),
        ("second", {"path": "top.txt"}, "top.txt:second line\n"),
        ("config", {}, ""),
    ],
)
def test_lines_are_found(
    pattern: str, arguments: dict[str, Any], expected: str, tree: Tree
) -> None:
    assert grep(tree, pattern, **arguments) == expected


def test_matches_have_limits(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "many").write_text("match\n" * 500)
    found = grep_search(tree, {"path": "many", "pattern": "match"})["plain_text_response"]
    assert "Total matches: 100" in found
    assert "[stopped after 100 matches" in found
    (tmp_path / "wide").write_text(("x" * 100_000 + "\n") * 500)
    assert len(grep(tree, "x", path="wide")) < 300_000
    assert len(grep(tree, "x", path="wide", context_lines=2**31)) < 300_000


def test_binary_files_are_left_out(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"match\0\n")
    assert grep(tree, "match") == ""


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(?P<x>"])
def test_an_invalid_expression_has_a_reason(pattern: str, tree: Tree) -> None:
    with pytest.raises(ToolError, match="invalid regex"):
        grep(tree, pattern)
    with pytest.raises(ToolError, match="path does not exist: nothing"):
        grep(tree, "a", path="nothing")


@pytest.mark.parametrize(
    ("pattern", "path", "covers"),
    [
        ("**", "a/b", True),
        ("*", "a/b", True),
        ("?", "a/b", True),
        ("a/?", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("[ab].c", "b.c", True),
        ("[!ab].c", "b.c", False),
        ("[", "[", True),
        ("a.c", "abc", False),
        ("[]]", "]", True),
    ],
)
def test_globs(pattern: str, path: str, covers: bool) -> None:
    assert Glob(pattern).covers(path) == covers
