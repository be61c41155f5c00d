"""References inside of a JSON schema."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

from specllama.engine.formats.json_schema import at_pointer


class References:
    """The schemas that the references in `document` name: by a JSON pointer, by `$id`, or by
    `$anchor`. Nothing outside of the document is looked for."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._named: dict[str, Any] | None = None  # by their addresses
        self._found: dict[tuple[str, str], tuple[Any, str]] = {}

    def target(self, reference: str, base: str) -> tuple[Any, str]:
        """The schema, and the base of the references in it; (None, "") if there is none. `base`
        is that of the schema in which `reference` stands."""
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
    """The address that `reference` means in a schema whose address is `base`."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)


def base_of(schema: dict[str, Any], base: str) -> str:
    """The base of the references in `schema`, which stands where it is `base`."""
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
