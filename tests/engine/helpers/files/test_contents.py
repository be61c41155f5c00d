"""The tools that read and change files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.helpers.files.contents import (
    MAX_TEXT,
    Edit,
    edit_file,
    edited,
    read_file,
    write_file,
)
from specllama.engine.helpers.files.files_jobs import ToolError
from specllama.engine.helpers.files.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(str(tmp_path))
    yield tree
    tree.close()


def text(tree: Tree, path: str, **arguments: Any) -> Any:
    found = read_file(tree, {"path": path, **arguments}, as_base64=False)
    return found["plain_text_response"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "one\ntwo\nthree\n"),
        ({"start_line": 2}, "two\nthree\n"),
        ({"start_line": 2, "end_line": 2}, "two\n"),
        ({"start_line": "2", "end_line": 2.0}, "two\n"),
        ({"start_line": 9}, ""),
        ({"start_line": -5, "end_line": 1, "append_loc": True}, "1\u2192one\n"),
    ],
)
def test_lines_are_read(
    arguments: dict[str, Any], expected: str, tree: Tree, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("one\ntwo\nthree")
    assert text(tree, "f", **arguments) == expected


def test_a_large_file_is_read_in_parts(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("0123456789\n" * 10_000)
    with pytest.raises(ToolError, match=r"file too large \(110000 bytes, max 16384\)"):
        text(tree, "f")
    assert text(tree, "f", start_line=9_999, end_line=20_000) == "0123456789\n" * 2
    cut = text(tree, "f", end_line=20_000)
    assert cut.endswith("0123456789\n[output truncated]")
    assert len(cut) < MAX_TEXT + 20


def test_a_line_without_an_end_is_cut(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (1 << 20))
    assert text(tree, "f", end_line=1) == "[output truncated]"


def test_bytes_are_read_as_base64(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\0\xff")
    assert read_file(tree, {"path": "f"}, as_base64=True) == {"base64": "AP8=", "size_bytes": 2}
    assert text(tree, "f") == "\0\ufffd\n"


def test_a_file_is_written_and_edited(tree: Tree, tmp_path: Path) -> None:
    written = write_file(tree, {"path": "a/f", "content": "line1\nline2\nline3\n"})
    assert written == {"result": "file written successfully", "path": "a/f", "bytes": 18}
    edits = [
        {"old_text": "line2", "new_text": "line2-edited"},
        {"old_text": "line3\n", "new_text": "line3\nline4\n"},
    ]
    done = edit_file(tree, {"path": "a/f", "edits": edits})
    assert done == {"result": "file edited successfully", "path": "a/f", "edits_applied": 2}
    assert (tmp_path / "a" / "f").read_text() == "line1\nline2-edited\nline3\nline4\n"


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (None, "must be a non-empty array"),
        ([], "must be a non-empty array"),
        ([5], r"edits\[0\] must be an object"),
        ([{"old_text": "a"}], '"new_text" must be a string'),
        ([{"old_text": "", "new_text": "a"}], r"edits\[0\].old_text must not be empty"),
        ([{"old_text": "x", "new_text": "a"}], r"could not find edits\[0\].old_text in f"),
        ([{"old_text": "dup", "new_text": "a"}], r"found 2 occurrences .* must be unique"),
        ([{"old_text": "one", "new_text": "one"}], "no changes made"),
        (
            [{"old_text": "one\ntwo", "new_text": "a"}, {"old_text": "two", "new_text": "b"}],
            r"edits\[0\] and edits\[1\] overlap",
        ),
        ([{"old_text": "a", "new_text": "b"}] * 1001, "more than 1000 entries"),
    ],
)
def test_wrong_edits(edits: Any, reason: str, tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\ndup\ndup\n")
    with pytest.raises(ToolError, match=reason):
        edit_file(tree, {"path": "f", "edits": edits})
    assert (tmp_path / "f").read_text() == "one\ntwo\ndup\ndup\n"


def test_other_files_are_not_edited(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff")
    with pytest.raises(ToolError, match="not a UTF-8 text"):
        edit_file(tree, {"path": "f", "edits": [{"old_text": "a", "new_text": "b"}]})
    for arguments in ({}, {"path": 5}, {"path": "f", "content": None}):
        with pytest.raises(ToolError, match="must be a string"):
            write_file(tree, arguments)


def test_spaces_at_ends_and_typography_do_not_matter() -> None:
    before = "keep \u201cthis\u201d  \nold\t\nsay \u2018hi\u2019\nkeep\u00a0that \n"
    edit = Edit("old\nsay 'hi'\n", "new\n")
    assert edited(before, [edit], "f") == ("keep \u201cthis\u201d  \nnew\nkeep\u00a0that \n")


PARTS = st.lists(st.sampled_from(["a", "b", " ", "\n", "\t", "\u2019", "'", "q"]), max_size=30)


@given(before=PARTS.map("".join), start=st.integers(0, 30), size=st.integers(1, 6), new=PARTS)
def test_an_exact_edit_is_a_replacement(before: str, start: int, size: int, new: list[str]) -> None:
    old = before[start : start + size]
    text = "".join(new)
    try:
        after = edited(before, [Edit(old, text)], "f") if old else before
    except ToolError:
        return  # it occurs several times
    assert after == (before.replace(old, text, 1) if old else before)


@given(lines=st.lists(st.sampled_from(["x", "y  ", "\u2019z", "", " w\t"]), max_size=8))
def test_other_lines_stay_as_they_are(lines: list[str]) -> None:
    before = "\n".join([*lines, "the \u2013 place ", *lines])
    after = edited(before, [Edit("the - place\n" if lines else "the - place", "HERE")], "f")
    first = "\n".join([*lines, "HERE"])
    assert after.startswith(first)
    assert after.endswith("\n".join(lines[1:]) if lines else "HERE")
