"""The documents for readers of the code agree with it: the paths and names are there, and the walks
have as many files as they count. Read from the source: nothing is imported here."""

import ast
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/security-model.md",
)
TREES = frozenset(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")

_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"[\w.*<>/-]+/[\w.*<>/-]*")
_DOTTED = re.compile(r"\w+(\.\w+)+")
_NAME = re.compile(r"\w+(\.\w+)?")
_COUNT = re.compile(r"(\d+) files:$")


@cache
def _text(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def _prose(document: str) -> str:
    return _FENCED.sub("", _text(document))


def _paths(document: str) -> Iterator[str]:
    """Paths of this repository: in the prose, in links and in diagrams."""
    text = _text(document)
    folder = posixpath.dirname(document)
    for target in _LINK.findall(text):
        yield posixpath.normpath(posixpath.join(folder, target))
    for span in _SPAN.findall(_prose(document)):
        if _PATH.fullmatch(span) and span.split("/")[0] in TREES:
            yield span
    for block in _FENCED.findall(text):
        for word in block.split():
            if _PATH.fullmatch(word) and word.split("/")[0] in TREES:
                yield word


def _is_there(path: str) -> bool:
    """`<tag>` and `*` stand for any name."""
    pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
    return any(ROOT.glob(pattern))


@cache
def _names(path: Path) -> frozenset[str]:
    """The names that a module defines: functions, classes with their methods and fields,
    constants."""

    def found(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield prefix + name
                case ast.ClassDef(name=name, body=inner):
                    yield prefix + name
                    yield from found(inner, f"{prefix}{name}.")
                case ast.Assign(targets=targets):
                    yield from (prefix + t.id for t in targets if isinstance(t, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    yield prefix + name

    return frozenset(found(ast.parse(path.read_text("utf-8")).body))


def _resolves(dotted: str) -> bool:
    """True if a dotted name is a package, a module, or something that one defines."""
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:n])
        module = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place
        if module.is_dir():
            module = module / "__init__.py"
            if n == len(parts):
                return True
        if module.is_file():
            return n == len(parts) or ".".join(parts[n:]) in _names(module)
    return False


def _rows(document: str) -> Iterator[list[str]]:
    for line in _text(document).splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def _file(cell: str) -> str | None:
    """The path of a module, if there is nothing else in a cell."""
    match = re.fullmatch(r"`([\w/]+\.py)`", cell)
    return match[1] if match else None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    paths = [*_paths(document)]
    assert paths
    assert not [path for path in paths if not _is_there(path)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_dotted_names_exist(document: str) -> None:
    spans = _SPAN.findall(_prose(document))
    ours = [s for s in spans if _DOTTED.fullmatch(s) and s.split(".")[0] in TREES]
    assert not [name for name in ours if not _resolves(name)]


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_functions_are_in_their_files(document: str) -> None:
    """Names in the cell after the path of a module."""
    astray = [
        f"{path}: {name}"
        for first, second, *_ in (row for row in _rows(document) if len(row) > 1)
        if (path := _file(first))
        for name in _SPAN.findall(second)
        if _NAME.fullmatch(name) and name not in _names(ROOT / path)
    ]
    assert not astray


def test_walks_are_counted() -> None:
    walks = _text("ARCHITECTURE.md").partition("## Four walks")[2].split("\n### ")[1:]
    assert len(walks) == 4
    for walk in walks:
        title, *lines = walk.splitlines()
        counts = [int(match[1]) for line in lines if (match := _COUNT.search(line))]
        rows = [line.split("|")[1].strip() for line in lines if line.startswith("| `")]
        files = [_file(cell) for cell in rows]
        assert None not in files, title
        assert len(set(files)) == len(files), title
        assert counts == [len(files)], title


def test_glossary_has_each_word_once() -> None:
    glossary = _text("ARCHITECTURE.md").partition("## Glossary")[2].partition("\n## ")[0]
    words = [line.split("|")[1].strip() for line in glossary.splitlines() if line[:2] == "| "]
    assert len(words) > 20
    assert len(set(words)) == len(words)
