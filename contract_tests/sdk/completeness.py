"""What a generator has left out of a client."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
SUFFIXES = (".py", ".ts", ".go")


def missing(description: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The operations and the objects with fields that no source file in `folder` is named like, or
    names, in whatever spelling."""
    names = _names(folder)
    for item in description["paths"].values():
        for method in METHODS:
            if method in item and _plain(item[method]["operationId"]) not in names:
                yield f"operation {item[method]['operationId']}"
    for name, schema in description["components"]["schemas"].items():
        if "properties" in schema and _plain(name) not in names:
            yield f"type {name}"


def _names(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*"):
        if path.suffix in SUFFIXES:
            words = [path.stem, *re.findall(r"\w+", path.read_text("utf-8"))]
            found.update(map(_plain, words))
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
