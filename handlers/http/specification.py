"""The description as Connexion takes it, without the work that comes out the same every time."""

import copy
from pathlib import Path
from typing import Any

from connexion.spec import OpenAPISpecification

from specllama.handlers.http.bundled import bundled

Node = dict[str, Any]


class Resolved(OpenAPISpecification):  # type: ignore[misc]  # connexion has no types
    """A valid description in one document, whose references all lead into it.

    Connexion's own way is to read each file by Python's YAML parser, to check the document and
    to look up every reference as a URL.
    """

    def __init__(self, document: Node, *, base_uri: str = "") -> None:
        self._raw_spec = document
        self._spec = resolved(document)
        self._base_uri = base_uri

    @classmethod
    def at(cls, path: Path) -> "Resolved":
        """The specification in the file at `path`. Raises
        `connexion.exceptions.InvalidSpecification`, and what `bundle` raises."""
        return cls(bundled(path, check=check))


def check(document: Node) -> None:
    """Raises `connexion.exceptions.InvalidSpecification` if `document` is not valid OpenAPI."""
    OpenAPISpecification._validate_spec(copy.deepcopy(document))


def resolved(document: Node) -> Node:
    """A copy of `document` with what is referred to in the place of references: the same object
    wherever it is referred to, so that its schemas are compiled once."""
    known: dict[str, Any] = {}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(child) for child in node]
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return {name: walk(child) for name, child in node.items()}
        if reference not in known:
            known[reference] = walk(_find(document, reference))
        return known[reference]

    copied: Node = walk(document)
    return copied


def _find(document: Node, reference: str) -> Any:
    node: Any = document
    for part in reference.split("/")[1:]:
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node
