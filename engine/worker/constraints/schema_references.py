"""References inside of a JSON schema."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote


def circle(targets: Mapping[str, Any]) -> str | None:
    """A reference whose target has to follow itself before anything else, if there is one.
    `targets` are the schemas that references name."""
    done: set[str] = set()
    for start in targets:
        path: dict[str, Iterator[str]] = {start: _in_place(targets[start])}
        while path:
            name = next(reversed(path))
            for further in path[name]:
                if further in path:
                    return further
                if further in targets and further not in done:
                    path[further] = _in_place(targets[further])
                    break
            else:
                done.add(name)
                del path[name]
    return None


def _in_place(schema: Any) -> Iterator[str]:
    """The references to what a value has to follow as a whole."""
    todo = [schema]
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict):
            todo += schema.get("allOf", [])
            if "$ref" in schema:
                yield schema["$ref"]


def at_pointer(document: Any, reference: str) -> Any:
    """The target of a JSON pointer in a URI fragment (RFC 6901); None if there is nothing."""
    if reference == "#":
        return document
    if not reference.startswith("#/"):
        return None
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document
