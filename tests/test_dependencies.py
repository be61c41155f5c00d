"""Libraries whose classes this package extends, or whose private names it uses, have upper bounds:
a minor version may change them."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BOUNDS = {
    re.split(r"[^\w.-]", each)[0].lower(): each
    for each in (
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["mcp"],
        *PROJECT["optional-dependencies"]["ray"],
    )
}
"""The dependencies, by the names of their distributions."""


class Inside(NamedTuple):
    """A class that ours extend, or a private name."""

    module: str
    name: str


def _relied_on() -> Iterator[Inside]:
    for folder in ("engine", "handlers", "specllama"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _of_module(_Running().visit(ast.parse(path.read_text("utf-8"))))


class _Running(ast.NodeTransformer):
    """Leaves out imports for type checkers."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def _of_module(tree: ast.Module) -> Iterator[Inside]:
    imported: dict[str, Inside] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and _is_foreign(node.module):
            for alias in node.names:
                found = Inside(node.module, alias.name)
                imported[alias.asname or alias.name] = found
                if any(part.startswith("_") for part in (*node.module.split("."), alias.name)):
                    yield found
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in imported:
                    yield imported[base.id]


def _is_foreign(module: str) -> bool:
    first = module.partition(".")[0]
    return first not in (*sys.stdlib_module_names, "specllama")


RELIED_ON = sorted(set(_relied_on()))


def test_something_is_found() -> None:
    assert Inside("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol") in RELIED_ON
    assert Inside("llguidance._tokenizer", "TokenizerWrapper") in RELIED_ON


@pytest.mark.parametrize("inside", RELIED_ON, ids=lambda inside: ".".join(inside))
def test_used_internals_exist_and_are_bounded(inside: Inside) -> None:
    library = inside.module.partition(".")[0]
    if library == "ray" and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    assert hasattr(import_module(inside.module), inside.name)
    [distribution] = set(packages_distributions()[library])
    bound = BOUNDS.get(distribution.lower(), "no dependency")
    assert re.search(r"<|==", bound), f"{distribution}: {bound}"
