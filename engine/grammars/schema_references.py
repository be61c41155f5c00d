"""Resolves the references in a JSON schema."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

from specllama.engine.formats.json_schema import at_pointer


class References:
    """The targets of the references in `document`: by JSON pointer, by `$id`, or by `$anchor`.
    References to other documents are not resolved."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._named: dict[str, Any] | None = None  # schemas by address
        self._found: dict[tuple[str, str], tuple[Any, str]] = {}

    def target(self, reference: str, base: str) -> tuple[Any, str]:
        """The target of `reference`, and the base of references in the target; (None, "") if there
        is none. `base` is the base of the schema that contains `reference`."""
        found = self._found.get((reference, base))
        if found is None:
            found = self._found[reference, base] = self._target(reference, base)
        return found

    def _target(self, reference: str, base: str) -> tuple[Any, str]:
        address = joined(base, reference)
        resource, _, fragment = address.partition("#")
        if not resource and (not fragment or fragment.startswith("/")):
            return at_pointer(self._document, f"#{fragment}"), resource
        if self._named is None:
            self._named = dict(_named(self._document))
        if not fragment or fragment.startswith("/"):
            return at_pointer(self._named.get(resource), f"#{fragment}"), resource
        return self._named.get(address), resource


def joined(base: str, reference: str) -> str:
    """The address of `reference` in a schema with the base `base`."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)


def base_of(schema: dict[str, Any], base: str) -> str:
    """The base of references in `schema`, in a place with the base `base`."""
    id = schema.get("$id")
    return joined(base, id).partition("#")[0] if isinstance(id, str) else base


def _named(document: Any) -> Iterator[tuple[str, Any]]:
    todo = [(document, "")]
    yield "", document
    while todo:
        value, base = todo.pop()
        if isinstance(value, dict):
            inner = base_of(value, base)
            if inner != base:
                yield inner, value
            if isinstance(anchor := value.get("$anchor"), str):
                yield f"{inner}#{anchor}", value
            if isinstance(id := value.get("$id"), str) and id.startswith("#"):
                yield f"{inner}{id}", value  # an anchor, in older drafts
            todo += [(each, inner) for each in value.values()]
        elif isinstance(value, list):
            todo += [(each, base) for each in value]


def circle(targets: Mapping[str, Any]) -> str | None:
    """A reference that leads back to itself in the same place, without any progress in the value;
    None if there is none. `targets` are the schemas by reference."""
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
    """The references in `schema` that apply to the same value."""
    todo = [schema]
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict):
            todo += schema.get("allOf", [])
            if "$ref" in schema:
                yield schema["$ref"]
