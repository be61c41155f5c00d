"""The tools that search: `file_glob_search` and `grep_search`.

The process has a time limit, which ends a regular expression that never does.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from specllama.engine import system
from specllama.engine.helpers.files.files_jobs import ToolError, flag, integer, text
from specllama.engine.helpers.files.tree import Tree

MAX_RESULTS: Final = 100
MAX_SECONDS: Final = 15.0
MAX_DEPTH: Final = 64
MAX_ENTRIES: Final = 200_000
MAX_SEARCHED: Final = 16 << 20  # bytes of a file; larger ones are left out
MAX_LINE: Final = 2000  # characters of a line in a result
MAX_OUTPUT: Final = 128 << 10  # characters
SKIPPED: Final = frozenset(
    (
        *(".cache", ".git", ".hg", ".idea", ".svn", ".venv", ".vscode", "__pycache__"),
        *("build", "dist", "node_modules", "target", "venv"),
    )
)
"""Directories that are listed and not searched, as in llama-server: they may be very large."""
_KINDS: Final = ("file", "dir", "all")


class Entry(NamedTuple):
    """A file or a directory, by its path below the searched directory."""

    path: str
    is_directory: bool


class Listing:
    """The entries below a directory, without links, and without names that can't be printed.
    `is_cut` if not all were seen."""

    def __init__(self, tree: Tree, base: str, max_depth: int = 0) -> None:
        """`max_depth` 1 means direct children alone, 0 all."""
        self.is_cut = False
        self._tree = tree
        self._base = base
        self._most = min(max_depth or MAX_DEPTH, MAX_DEPTH)
        self._stop_at = system.now() + MAX_SECONDS

    def __iter__(self) -> Iterator[Entry]:
        descriptor = self._tree.open_directory(self._base)
        try:
            yield from self._walk(descriptor)
        finally:
            os.close(descriptor)

    def _walk(self, descriptor: int) -> Iterator[Entry]:
        n_seen = 0
        for place, folders, files, opened in os.fwalk(
            ".", onerror=self._note, follow_symlinks=False, dir_fd=descriptor
        ):
            if self._tree.is_unreal(os.fstat(opened)):
                folders.clear()
                continue
            depth = place.count("/")
            prefix = place[2:] + "/" if depth else ""
            folders.sort()
            n_seen += len(folders) + len(files)
            if n_seen > MAX_ENTRIES or system.now() > self._stop_at:
                self.is_cut = True
                return
            yield from (
                Entry(prefix + name, is_directory=False)
                for name in sorted(files)
                if _is_regular(name, opened)
            )
            folders[:] = [name for name in folders if _is_directory(name, opened)]
            yield from (Entry(prefix + name, is_directory=True) for name in folders)
            folders[:] = [name for name in folders if name not in SKIPPED]
            if depth + 1 >= self._most:
                self.is_cut |= bool(folders) and self._most == MAX_DEPTH
                folders.clear()

    def _note(self, _: OSError) -> None:
        self.is_cut = True


def _mode(name: str, directory: int) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _is_regular(name: str, directory: int) -> bool:
    return stat.S_ISREG(_mode(name, directory)) and name.isprintable()


def _is_directory(name: str, directory: int) -> bool:
    return stat.S_ISDIR(_mode(name, directory)) and name.isprintable()


class Glob:
    """A pattern of paths. Without a slash, it is one for the last name; with one, it may begin at
    any directory, unless it begins with `/` or `**/`."""

    def __init__(self, pattern: str) -> None:
        self._only_name = "/" not in pattern
        if not self._only_name and pattern != "**" and not pattern.startswith(("/", "**/")):
            pattern = "**/" + pattern
        self._matches = re.compile(_expression(pattern.lstrip("/")), re.DOTALL).fullmatch

    def covers(self, path: str) -> bool:
        return bool(self._matches(path.rpartition("/")[2] if self._only_name else path))


def _expression(pattern: str) -> str:
    """Returns the regular expression of a glob pattern."""
    parts: list[str] = []
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if piece == "**/":
            parts.append("(?:.*/)?")
        elif piece == "**":
            parts.append(".*")
        elif piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif len(piece) > 1:
            inner = piece[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]")
        else:
            parts.append(re.escape(piece))
    return "".join(parts)


def _globs(arguments: Mapping[str, Any]) -> tuple[Glob, Glob | None]:
    exclude = text(arguments, "exclude", "")
    try:
        return Glob(text(arguments, "include", "**")), Glob(exclude) if exclude else None
    except re.error as error:
        raise ToolError(f"invalid glob pattern: {error}") from None


def glob_search(tree: Tree, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `file_glob_search`. Raises ToolError."""
    path, kind = text(arguments, "path"), text(arguments, "type", "file")
    include, exclude = _globs(arguments)
    depth, limit = integer(arguments, "max_depth", 0), integer(arguments, "limit", MAX_RESULTS)
    if kind not in _KINDS:
        raise ToolError(f'invalid type: {kind} (expected "file", "dir" or "all")')
    if limit < 1:
        raise ToolError(f"invalid limit: {limit} (expected 1 or more)")
    base = tree.absolute(path)
    if tree.kind(base) != "dir":
        raise ToolError(f"path does not exist or is not a directory: {path}")
    listing = Listing(tree, base, max(depth, 0))
    shown: list[Entry] = []
    total = 0
    for entry in listing:
        is_wanted = kind == "all" or entry.is_directory == (kind == "dir")
        if not is_wanted or not include.covers(entry.path):
            continue
        if exclude is not None and exclude.covers(entry.path):
            continue
        total += 1
        if len(shown) < min(limit, MAX_RESULTS):
            shown.append(entry)
    lines = [entry.path + "/" * entry.is_directory for entry in shown]
    lines += ["", "---", f"Total matches: {total}"]
    if total > len(shown):
        lines.append(f"[{len(shown)} of {total} shown: narrow the pattern to see others]")
    if listing.is_cut:
        lines.append("[not all directories were searched]")
    entries = [{"path": e.path, "type": "dir" if e.is_directory else "file"} for e in shown]
    return {"plain_text_response": "\n".join(lines) + "\n", "entries": entries, "base": base}


def grep_search(tree: Tree, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `grep_search`. Raises ToolError."""
    path, pattern = text(arguments, "path"), text(arguments, "pattern")
    include, exclude = _globs(arguments)
    around = max(integer(arguments, "context_lines", 0), 0)
    numbered = flag(arguments, "return_line_numbers") or around > 0
    flags = re.IGNORECASE if flag(arguments, "ignore_case") else re.NOFLAG
    try:
        source = re.escape(pattern) if flag(arguments, "literal") else pattern
        search = re.compile(source, flags).search
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"invalid regex: {error}") from None
    base = tree.absolute(path)
    kind = tree.kind(base)
    listing = Listing(tree, base)
    if kind == "file":
        files: Iterator[tuple[str, str]] = iter([(base, path)])
    elif kind == "dir":
        files = (
            (os.path.join(base, entry.path), entry.path)
            for entry in listing
            if not entry.is_directory
            and include.covers(entry.path)
            and not (exclude is not None and exclude.covers(entry.path))
        )
    else:
        raise ToolError(f"path does not exist: {path}")
    found = _Found(around, numbered)
    for full, name in files:
        if found.is_full:
            break
        lines = _lines(tree, full)
        for index, line in enumerate(lines):
            if found.is_full:
                break
            if search(line):
                found.add(name, lines, index)
    return {"plain_text_response": found.text(is_cut=listing.is_cut)}


def _lines(tree: Tree, path: str) -> list[str]:
    """Returns the lines of a text file; an empty list for other files, and for very large ones."""
    try:
        data = tree.read(path, MAX_SEARCHED)
    except (ToolError, OSError):
        return []
    if b"\0" in data[:8192]:
        return []
    lines = data.decode(errors="replace").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


class _Found:
    """The text of the matches so far."""

    def __init__(self, around: int, numbered: bool) -> None:
        self._around = around
        self._numbered = numbered
        self._parts: list[str] = []
        self._size = 0
        self._total = 0

    @property
    def is_full(self) -> bool:
        return self._total >= MAX_RESULTS or self._size > MAX_OUTPUT

    def add(self, name: str, lines: list[str], index: int) -> None:
        self._total += 1
        first, last = max(index - self._around, 0), min(index + self._around, len(lines) - 1)
        for number in range(first, last + 1):
            mark = ":" if number == index else "-"
            numbers = f"{number + 1}{mark}" if self._numbered else ""
            self._put(f"{name}{mark}{numbers}{lines[number][:MAX_LINE]}\n")
            if self._size > MAX_OUTPUT:
                return
        if self._around:
            self._put("--\n")

    def _put(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)

    def text(self, *, is_cut: bool) -> str:
        end = f"\n---\nTotal matches: {self._total}\n"
        if self.is_full:
            end += f"[stopped after {self._total} matches: narrow the search to see others]\n"
        if is_cut:
            end += "[not all directories were searched]\n"
        return "".join(self._parts) + end
