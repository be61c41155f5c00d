"""The import rules of ARCHITECTURE.md, read from the source: nothing is imported here."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = (
    # what both kinds of process use
    "engine.user_cache",
    "engine.processor",
    "engine.errors",
    "engine.params",
    "engine.formats",
    "engine.processes",
    "engine.shipped",
    "engine.options",
    "engine.protocol",
    # the engine process
    "engine.worker.tokens",
    "engine.worker.backend",
    "engine.worker.media",
    "engine.worker.cache",
    "engine.worker.constraints",
    "engine.worker.scheduling",
    "engine.worker.speculation",
    "engine.worker.generation",
    "engine.worker.embedding",
    "engine.worker",
    # the server process
    "engine.chat",
    "engine.chat.template",
    "engine.chat.parse",
    "engine.chat.detect",
    "engine.chat.grammar",
    "engine.chat.rendering",
    "engine.media",
    "engine.media.decoding",
    "engine.media.fetching",
    "engine.media.parent",
    "engine.catalog",
    "engine.catalog.download",
    "engine.catalog.inspect",
    "engine.pool",
    "engine",
    # HTTP
    "handlers.options",
    "handlers.http",
    "handlers.running",
    "handlers.apis",
    "handlers",
    "handlers.connexion_run",
    "specllama",
)
"""From the ground up. A module stands on the floor of its longest prefix, and imports from that
floor and from below."""

NEVER = (
    # What runs in the server process, and what in the engine process.
    ("engine.chat", "engine.worker"),
    ("engine.catalog", "engine.worker"),
    ("engine.pool", "engine.worker"),
    ("engine.media", "engine.worker"),
    ("handlers", "engine.worker"),
    ("specllama", "engine.worker"),
    # The engine knows nothing of HTTP servers.
    ("engine", "connexion"),
    ("engine", "starlette"),
    ("engine", "uvicorn"),
    # Importing it patches Connexion: only Connexion's command line does, by a name in server.yaml.
    ("handlers", "handlers.connexion_run"),
    ("specllama", "handlers.connexion_run"),
    # The kit tests any server; only what is beside it knows ours.
    ("contract_tests.kit", "engine"),
    ("contract_tests.kit", "handlers"),
    ("contract_tests.kit", "specllama"),
    ("contract_tests.kit", "tests"),
    ("contract_tests.kit", "tools"),
    ("contract_tests.kit", "contract_tests.own"),
    ("tests", "contract_tests.own"),
    ("tools.models", "handlers"),
    ("tools", "contract_tests"),
    ("tools", "tests"),
)
"""(importer, imported): no module below the first may import one below the second."""

ONLY = {
    "llama_cpp": "engine.worker.backend",
    "llguidance": "engine.worker.constraints",
    # What works on bytes that anybody may have sent runs in a process of its own.
    "PIL": "engine.media.decoding",
    "miniaudio": "engine.media.decoding",
    "pypdfium2": "engine.media.decoding",
    "httpcore2": "engine.media.fetching",
}
"""Libraries with one way in."""

EXCEPTIONS = {
    ("specllama.cli", "engine.worker.backend"): "--list-devices starts no engine process",
}

PRODUCT = ("engine", "handlers", "specllama")
TREES = (*PRODUCT, "contract_tests", "tests", "tools", "benchmarks")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_module(path): path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))}


_BY_NAME = frozenset({"import_module", "importorskip"})
"""Functions that import the module that their argument names."""


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


def _imports(path: Path) -> Iterator[str]:
    """The imports anywhere in a module: modules by name, libraries by their full name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in _BY_NAME:
            texts = (each.value for each in node.args if isinstance(each, ast.Constant))
            yield from (text for text in texts if isinstance(text, str))
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


IMPORTS = {name: set(_imports(path)) for name, path in MODULES.items()}


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _pairs(importers: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name, imported in IMPORTS.items():
        if any(_below(name, prefix) for prefix in importers):
            yield from ((name, other) for other in imported if (name, other) not in EXCEPTIONS)


def _floor(name: str) -> int:
    return FLOORS.index(max((each for each in FLOORS if _below(name, each)), key=len))


def test_imports_run_downwards() -> None:
    upwards = [
        f"{name} -> {other}"
        for name, other in _pairs(PRODUCT)
        if other.split(".")[0] in PRODUCT and _floor(other) > _floor(name)
    ]
    assert not upwards


@pytest.mark.parametrize(("importer", "imported"), NEVER)
def test_never_imports(importer: str, imported: str) -> None:
    assert not [pair for pair in _pairs([importer]) if _below(pair[1], imported)]


@pytest.mark.parametrize(("library", "place"), ONLY.items())
def test_library_has_one_way_in(library: str, place: str) -> None:
    users = [name for name, other in _pairs(PRODUCT) if _below(other, library)]
    assert users
    assert not [name for name in users if not _below(name, place)]


def test_no_circles() -> None:
    graph = {
        name: {other for other in others if other in MODULES} for name, others in IMPORTS.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_exceptions_are_used() -> None:
    assert not [pair for pair in EXCEPTIONS if pair[1] not in IMPORTS[pair[0]]]


def test_tests_mirror_the_tree() -> None:
    astray = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("*/**/test_*.py")
        if not (ROOT / path.relative_to(ROOT / "tests").parent).is_dir()
    ]
    assert not astray
