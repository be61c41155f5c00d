"""The tools that read and change files: `read_file`, `write_file` and `edit_file`."""

import base64
import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

from specllama.engine.helpers.files.files_jobs import ToolError, flag, integer, text
from specllama.engine.helpers.files.tree import Tree

MAX_TEXT: Final = 16 << 10  # bytes of a result, as in llama-server
MAX_BYTES: Final = 32 << 20  # bytes of a file that is read as Base64, the same
MAX_SCANNED: Final = 64 << 20  # bytes of a file that is read in parts
MAX_EDITED: Final = 16 << 20  # bytes of a file that is edited
MAX_EDITS: Final = 1000
CUT: Final = "[output truncated]"


def read_file(tree: Tree, arguments: Mapping[str, Any], *, as_base64: bool) -> dict[str, Any]:
    """Returns the result of `read_file`. Raises ToolError."""
    path = text(arguments, "path")
    if as_base64:
        data = tree.read(path, MAX_BYTES)
        return {"base64": base64.b64encode(data).decode(), "size_bytes": len(data)}
    first = integer(arguments, "start_line", 1)
    last = integer(arguments, "end_line", -1)
    numbered = flag(arguments, "append_loc")
    descriptor, size = tree.open_file(path)
    with open(descriptor, "rb") as file:
        if size > MAX_TEXT and last == -1:
            raise ToolError(
                f"file too large ({size} bytes, max {MAX_TEXT}). "
                "Use start_line/end_line to read a portion."
            )
        if size > MAX_SCANNED:
            raise ToolError(f"file too large ({size} bytes, max {MAX_SCANNED})")
        found, n_bytes = [], 0
        for number, line in enumerate(_lines(file), 1):
            if number < first:
                continue
            if last != -1 and number > last:
                break
            shown = f"{number}\u2192{line}\n" if numbered else f"{line}\n"
            n_bytes += len(shown.encode())
            if n_bytes > MAX_TEXT:
                found.append(CUT)
                break
            found.append(shown)
    return {"plain_text_response": "".join(found)}


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yields the lines without their ends, decoded, and cut if a line is longer than a result."""
    for line in file:
        yield line[: MAX_TEXT + 4].removesuffix(b"\n").decode(errors="replace")


def write_file(tree: Tree, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `write_file`. Raises ToolError."""
    path, data = text(arguments, "path"), text(arguments, "content").encode()
    tree.write(path, data)
    return {"result": "file written successfully", "path": path, "bytes": len(data)}


# ---- Edits


class Edit(NamedTuple):
    """A replacement of one text, which has to occur once."""

    old: str
    new: str


class _Match(NamedTuple):
    number: int  # of the edit
    start: int
    stop: int
    new: str


def edit_file(tree: Tree, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `edit_file`. Raises ToolError."""
    path, edits = text(arguments, "path"), _edits(arguments.get("edits"))
    try:
        before = tree.read(path, MAX_EDITED).decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not a UTF-8 text") from None
    after = edited(before, edits, path)
    if after == before:
        raise ToolError("no changes made: the replacement(s) produced identical content")
    tree.write(path, after.encode())
    return {"result": "file edited successfully", "path": path, "edits_applied": len(edits)}


def _edits(value: Any) -> list[Edit]:
    if not isinstance(value, list) or not value:
        raise ToolError('"edits" must be a non-empty array')
    if len(value) > MAX_EDITS:
        raise ToolError(f'"edits" has more than {MAX_EDITS} entries')
    edits = []
    for number, each in enumerate(value):
        if not isinstance(each, dict):
            raise ToolError(f"edits[{number}] must be an object")
        edits.append(Edit(text(each, "old_text"), text(each, "new_text")))
        if not edits[-1].old:
            raise ToolError(f"edits[{number}].old_text must not be empty")
    return edits


def edited(before: str, edits: Sequence[Edit], path: str) -> str:
    """Returns the text after all edits, each of which refers to the text before.

    If an old text doesn't occur exactly, all are searched without regard to spaces at the ends of
    lines and to typographic characters, as in llama-server; lines outside of the replaced ones stay
    as they are. Raises ToolError.
    """
    plain = _plain(before)
    exact = all(edit.old in before for edit in edits)
    base = before if exact else plain
    matches = []
    for number, edit in enumerate(edits):
        old, loose = (edit.old, _plain(edit.old))
        n_found = plain.count(loose) if loose else plain.count(old)
        start = base.find(old if exact else loose)
        if n_found == 0 or start < 0 or not loose:
            raise ToolError(
                f"could not find edits[{number}].old_text in {path}, "
                "it must match the file's current content exactly"
            )
        if n_found > 1:
            raise ToolError(
                f"found {n_found} occurrences of edits[{number}].old_text in {path}, "
                "it must be unique"
            )
        matches.append(_Match(number, start, start + len(old if exact else loose), edit.new))
    matches.sort(key=lambda match: match.start)
    for one, other in itertools.pairwise(matches):
        if one.stop > other.start:
            raise ToolError(
                f"edits[{one.number}] and edits[{other.number}] overlap in {path}; merge them into "
                "one edit or target disjoint regions"
            )
    return _replaced(base, matches) if exact else _merged(before, plain, matches)


def _replaced(base: str, matches: Sequence[_Match]) -> str:
    parts, position = [], 0
    for match in matches:
        parts += [base[position : match.start], match.new]
        position = match.stop
    return "".join([*parts, base[position:]])


def _merged(before: str, plain: str, matches: Sequence[_Match]) -> str:
    """Returns `plain` with the replacements, in which lines that no match touches are those of
    `before`. Both have the same number of lines."""
    originals, simples = _with_ends(before), _with_ends(plain)
    starts = [0, *itertools.accumulate(map(len, simples))]
    parts: list[str] = []
    line = 0
    groups: list[tuple[int, int, list[_Match]]] = []  # lines from, to, and their matches
    for match in matches:
        first = bisect.bisect_right(starts, match.start) - 1
        last = bisect.bisect_right(starts, match.stop - 1) - 1
        if groups and first <= groups[-1][1]:
            before_it = groups.pop()
            groups.append((before_it[0], max(last, before_it[1]), [*before_it[2], match]))
        else:
            groups.append((first, last, [match]))
    for first, last, found in groups:
        moved = [
            match._replace(start=match.start - starts[first], stop=match.stop - starts[first])
            for match in found
        ]
        parts += originals[line:first]
        parts.append(_replaced("".join(simples[first : last + 1]), moved))
        line = last + 1
    return "".join(parts + originals[line:])


def _with_ends(content: str) -> list[str]:
    """Returns the lines with their line feeds. The last one has none, and may be empty."""
    *lines, last = content.split("\n")
    return [*(line + "\n" for line in lines), last]


_QUOTES: Final = {
    **dict.fromkeys(map(chr, range(0x2018, 0x201C)), "'"),
    **dict.fromkeys(map(chr, range(0x201C, 0x2020)), '"'),
    **dict.fromkeys([*map(chr, range(0x2010, 0x2016)), "\u2212"], "-"),
    **dict.fromkeys(
        ["\u00a0", *map(chr, range(0x2002, 0x200B)), "\u202f", "\u205f", "\u3000"], " "
    ),
}
_TRANSLATION: Final = str.maketrans(_QUOTES)


def _plain(content: str) -> str:
    """Returns the content without spaces at the ends of lines, and with typographic quotes, dashes
    and spaces as ASCII."""
    lines = (line.rstrip(" \t\r") for line in content.split("\n"))
    return "\n".join(lines).translate(_TRANSLATION)
