"""The import rules of ARCHITECTURE.md, read from the source: nothing is imported here."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = (
    # what all processes use
    "specllama.engine.errors",
    "specllama.engine.params",
    "specllama.engine.host",
    "specllama.engine.system",
    "specllama.engine.formats",
    "specllama.engine.shipped",
    "specllama.engine.options",
    # both ends of a pipe
    "specllama.engine.grammars",
    "specllama.engine.wire",
    "specllama.engine.chat",
    "specllama.engine.chat.parse",
    "specllama.engine.chat.grammar",
    "specllama.engine.catalog",
    # the helper processes, and their clients
    "specllama.engine.helpers.render.template",
    "specllama.engine.helpers.render.detect",
    "specllama.engine.helpers",
    # the engine process
    "specllama.engine.worker.tokens",
    "specllama.engine.worker.backend",
    "specllama.engine.worker.media",
    "specllama.engine.worker.cache",
    "specllama.engine.worker.constraints",
    "specllama.engine.worker.scheduling",
    "specllama.engine.worker.speculation",
    "specllama.engine.worker.generation",
    "specllama.engine.worker.embedding",
    "specllama.engine.worker",
    # the server process
    "specllama.engine.media",
    "specllama.engine.models",
    "specllama.engine.fleet",
    "specllama.engine",
    # HTTP
    "specllama.handlers.options",
    "specllama.handlers.http",
    "specllama.handlers.running",
    "specllama.handlers.apis",
    "specllama.handlers",
    "specllama.handlers.binding",
    "specllama.handlers.binding.connexion_command",
    "specllama",
)
"""From the ground up. A module stands on the floor of its longest prefix, and imports from that
floor and from below."""

NEVER = (
    # The modules of the server process and of the engine process.
    ("specllama.engine.chat", "specllama.engine.worker"),
    ("specllama.engine.catalog", "specllama.engine.worker"),
    ("specllama.engine.models", "specllama.engine.worker"),
    ("specllama.engine.fleet", "specllama.engine.worker"),
    ("specllama.engine.media", "specllama.engine.worker"),
    ("specllama.handlers", "specllama.engine.worker"),
    ("specllama", "specllama.engine.worker"),
    # The engine contains nothing about HTTP servers.
    ("specllama.engine", "starlette"),
    ("specllama.engine", "uvicorn"),
    # Importing it patches Connexion: only Connexion's command line does, by a name in server.yaml.
    ("specllama.handlers", "specllama.handlers.binding.connexion_command"),
    ("specllama", "specllama.handlers.binding.connexion_command"),
    # The kit tests any server; only modules outside it depend on ours.
    ("contract_tests.kit", "specllama.engine"),
    ("contract_tests.kit", "specllama.handlers"),
    ("contract_tests.kit", "specllama"),
    ("contract_tests.kit", "tests"),
    ("contract_tests.kit", "tools"),
    ("contract_tests.kit", "contract_tests.own"),
    ("tests", "contract_tests.own"),
    ("tools.models", "specllama.handlers"),
    ("tools", "contract_tests"),
    ("tools", "tests"),
)
"""(importer, imported): no module below the first may import one below the second."""

ONLY = {
    "connexion": ("specllama.handlers.binding",),
    "llama_cpp": ("specllama.engine.worker.backend",),
    "llguidance": (
        "specllama.engine.grammars",
        "specllama.engine.helpers.trial",
        "specllama.engine.worker.constraints",
    ),
    # A simulation has threads of its own.
    "threading": (
        "specllama.engine.system",
        "specllama.engine.grammars.compiling",  # the size of a stack
        "specllama.engine.helpers.download.download_main",  # a process that isn't simulated
        "specllama.engine.wire.head_start",  # real processes
        "specllama.engine.worker.backend.mtmd_log",  # a library's own threads
        "specllama.terminal",
        "specllama.tethered",
    ),
    "concurrent.futures": (
        "specllama.engine.system",
        "specllama.engine.helpers.fetch.fetch_main",  # the same
    ),
    "queue": ("specllama.engine.system", "specllama.engine.worker"),
    # Code that reads bytes from anywhere runs in a separate process.
    "PIL": ("specllama.engine.helpers.decode",),
    "miniaudio": ("specllama.engine.helpers.decode",),
    "pypdfium2": ("specllama.engine.helpers.decode",),
    "av": ("specllama.engine.helpers.decode",),
    "httpcore2": ("specllama.engine.helpers.fetch",),
    # So does code that reads what MCP servers say.
    "mcp": (
        "specllama.engine.helpers.tools.session",
        "specllama.engine.helpers.tools.transports",
    ),
    "mcp_types": (
        "specllama.engine.helpers.tools.session",
        "specllama.engine.helpers.tools.transports",
    ),
    # Optional dependencies.
    "opentelemetry": ("specllama.handlers.http.otel",),
    "ray": ("specllama.ray_cluster", "specllama.ray_serve", "specllama.ray_stores"),
}
"""Libraries with one way in."""

EXCEPTIONS = {
    ("specllama.cli", "specllama.engine.worker.backend"): "--list-devices starts no engine process",
}

CLIENTS = {
    "check": {"checker"},
    "decode": {"decoder"},
    "download": {"downloader"},
    "fetch": {"fetcher"},
    "files": {"toolbox", "shell", "definitions"},
    "inspect": {"inspector", "digest"},
    "render": {"renderer", "template.template", "template.prompt"},  # llama.cpp's own formats
    "tools": {"servers", "configuration"},
    "trial": set[str](),  # `worker/constraints/trial.py`
}
"""Modules of a helper's folder that others import, in addition to its messages."""

GROUND = frozenset({"errors", "formats", "host", "options", "params", "shipped", "system", "wire"})
"""Rooms of `engine/` that every process may use."""
_CLIENT_JOBS = ("check", "decode", "download", "fetch", "files", "inspect", "render", "tools")
SERVER = frozenset(
    {"catalog", "chat", "media", "models", "helpers.pool", *(f"helpers.{j}" for j in _CLIENT_JOBS)}
)
PROCESSES = {
    "worker.__main__": {"worker", "grammars", "helpers.trial"},
    "helpers.check.check_main": {"helpers.check"},
    "helpers.decode.decode_main": {"helpers.decode"},
    "helpers.download.download_main": {"helpers.download", "catalog"},
    "helpers.fetch.fetch_main": {"helpers.fetch"},
    "helpers.files.files_main": {"helpers.files"},
    # Compiling a model's template shows whether it is written for tools.
    "helpers.inspect.inspect_main": {"helpers.inspect", "helpers.render"},
    "helpers.render.render_main": {"helpers.render", "chat"},
    "helpers.tools.tools_main": {"helpers.tools"},
    "helpers.trial.trial_main": {"helpers.trial", "grammars"},
}
"""The rooms of `engine/` that each process uses, by its main module."""

SMALLEST, LARGEST = 40, 460
"""Lines of a module of the product."""
SMALL = {
    "specllama.early_signals": "imported before everything else",
    "specllama.engine.chat.harmony_markers": "a namespace for names like START",
    "specllama.engine.worker.backend.bindings": "imported before llama_cpp",
    "specllama.engine.worker.backend.warming": "",
    "specllama.handlers.http.build_info": "",
    "specllama.handlers.http.schemas": "its types are in a stub",
    "specllama.handlers.options.completion.kinds": "for three shells",
    "specllama.handlers.running.run_in_thread": "",
    "specllama.pytest_plugin": "imports nothing of the server",
    "specllama.tethered": "a program",
}
"""Smaller ones, with the reason where it isn't that several modules need them. A handler module of
a tag, a program and messages of a helper may be small, too."""

FOLDERS = ("engine", "handlers", "specllama")
"""The folders of the one package: the first two are linked into the third."""
PRODUCT = ("specllama", "specllama.engine", "specllama.handlers")
TREES = (*FOLDERS, "contract_tests", "tests", "tools", "benchmarks")


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"specllama.{name}" if name.partition(".")[0] in ("engine", "handlers") else name


MODULES = {
    _module(path): path
    for tree in TREES
    for path in sorted((ROOT / tree).rglob("*.py"))
    if not any((ROOT / "specllama" / each) in path.parents for each in FOLDERS)
}


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
    """True if a module is in a package; `specllama` stands for modules outside the other two."""
    if prefix == "specllama" and any(_below(name, other) for other in PRODUCT[1:]):
        return False
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
        if other in MODULES and _floor(other) > _floor(name)
    ]
    assert not upwards


@pytest.mark.parametrize(("importer", "imported"), NEVER)
def test_never_imports(importer: str, imported: str) -> None:
    assert not [pair for pair in _pairs([importer]) if _below(pair[1], imported)]


@pytest.mark.parametrize(("library", "places"), ONLY.items())
def test_library_has_one_way_in(library: str, places: tuple[str, ...]) -> None:
    users = [name for name, other in _pairs(PRODUCT) if _below(other, library)]
    assert users
    assert not [name for name in users if not any(_below(name, place) for place in places)]


def test_a_helper_is_used_through_its_client() -> None:
    root = "specllama.engine.helpers."
    others = set()
    for name, other in _pairs(PRODUCT):
        job, _, module = other.removeprefix(root).partition(".")
        is_inside = other.startswith(root) and module and not _below(name, root + job)
        if is_inside and module not in CLIENTS[job] | {f"{job}_jobs"}:
            others.add(f"{name} -> {other}")
    assert not others


def _reached(*starts: str) -> set[str]:
    """Returns the folders of `engine/` that the modules `starts` import, and their imports."""
    found: set[str] = set()
    waiting = [*starts]
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in found:
            found.add(name)
            waiting += (other for other in IMPORTS[name] if (name, other) not in EXCEPTIONS)
    rooms = (each.split(".")[2:] for each in found if each.startswith("specllama.engine."))
    return {".".join(parts[: 2 if parts[0] == "helpers" else 1]) for parts in rooms} - {"helpers"}


@pytest.mark.parametrize(("main", "rooms"), PROCESSES.items())
def test_a_folder_is_a_process(main: str, rooms: set[str]) -> None:
    assert _reached(f"specllama.engine.{main}") - GROUND == rooms


def test_the_server_s_folders() -> None:
    """Handlers are imported by their names in the description."""
    handlers = [name for name in MODULES if name.startswith("specllama.handlers.")]
    assert _reached("specllama.cli", *handlers) - GROUND == SERVER


def test_there_is_one_package() -> None:
    others = [
        f"{name} -> {other}"
        for name, imported in IMPORTS.items()
        for other in imported
        if other.partition(".")[0] in ("engine", "handlers")
    ]
    assert not others


def test_no_circles() -> None:
    graph = {
        name: {other for other in others if other in MODULES} for name, others in IMPORTS.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _is_small_by_nature(name: str) -> bool:
    parent, _, last = name.rpartition(".")
    return parent == "specllama.handlers" or last == "__main__" or last.endswith(("_main", "_jobs"))


def test_modules_have_a_size() -> None:
    lines = {
        name: len(path.read_text("utf-8").splitlines())
        for name, path in MODULES.items()
        if name.startswith("specllama.") and path.name != "__init__.py"
    }
    assert not [name for name, n in lines.items() if n > LARGEST]
    small = {name for name, n in lines.items() if n < SMALLEST and not _is_small_by_nature(name)}
    assert small == SMALL.keys()


DIALECTS = ("native", "openai", "responses", "anthropic", "gemini", "ollama")
SERVING = {
    "specllama.engine.models.client",
    "specllama.handlers.http.current",
    "specllama.handlers.running.resolve_model",
    "specllama.handlers.running.runtime",
}
BETWEEN_DIALECTS = {
    ("ollama", "openai"): "a body of /api/chat may have every field of Chat Completions",
    (
        "openai",
        "native",
    ): "texts have native prompts, and `__verbose` is a native result",
}


def test_a_dialect_knows_no_other_one() -> None:
    """Neither do its `request.py` and `format.py` use a model, an engine or a connection."""
    place = "specllama.handlers.apis."
    found: set[tuple[str, str]] = set()
    for name, other in _pairs(("specllama.handlers.apis",)):
        dialect, _, _ = name.removeprefix(place).partition(".")
        if dialect not in DIALECTS:
            continue
        if name.endswith((".request", ".format")):
            assert other not in SERVING
        imported, _, _ = other.removeprefix(place).partition(".")
        if imported in DIALECTS and imported != dialect:
            found.add((dialect, imported))
    assert found == BETWEEN_DIALECTS.keys()


def test_a_name_means_one_class() -> None:
    """A public class of the product has a name of its own."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text("utf-8")).body if name.startswith("specllama") else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_exceptions_are_used() -> None:
    assert not [pair for pair in EXCEPTIONS if pair[1] not in IMPORTS[pair[0]]]


def test_tests_mirror_the_tree() -> None:
    astray = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("*/**/test_*.py")
        if path.parent.name != "simulation"  # of the engine as a whole
        and not (ROOT / path.relative_to(ROOT / "tests").parent).is_dir()
    ]
    assert not astray
