"""Finds parts of the description that a generated client lacks."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
SUFFIXES = (".py", ".ts", ".go")


def missing(description: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yields the operations and the objects with fields that occur in no name of a source file in
    `folder` and in no source file, in any spelling. The fields of a form may be parameters of its
    operation instead."""
    names = _names(folder)
    forms = set(_forms(description))
    for item in description["paths"].values():
        for method in METHODS:
            if method in item and _plain(item[method]["operationId"]) not in names:
                yield f"operation {item[method]['operationId']}"
    for name, schema in description["components"]["schemas"].items():
        if "properties" not in schema or _plain(name) in names:
            continue
        if name not in forms or not names.issuperset(map(_plain, schema["properties"])):
            yield f"type {name}"


def _forms(description: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the schemas of form bodies."""
    for item in description["paths"].values():
        for method in METHODS:
            content = item.get(method, {}).get("requestBody", {}).get("content", {})
            for type_, media in content.items():
                if type_ != "application/json":
                    yield media["schema"].get("$ref", "").rpartition("/")[2]


def _names(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*"):
        if path.suffix in SUFFIXES:
            words = [path.stem, *re.findall(r"\w+", path.read_text("utf-8"))]
            found.update(map(_plain, words))
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
