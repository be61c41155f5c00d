"""Makes the Connexion application, for `specllama` and for `connexion run`.

`Resolved` spares the work that Connexion would repeat at every start."""

import copy
import dataclasses
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from connexion import AsyncApp
from connexion.middleware.main import API
from connexion.spec import OpenAPISpecification

from specllama.handlers.binding.errors import HANDLED, answer
from specllama.handlers.binding.security import SECURITY_MAP
from specllama.handlers.binding.stack import Api, middlewares
from specllama.handlers.binding.validation import validator_map
from specllama.handlers.http.description import bundled

Node = dict[str, Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]


def application(lifespan: Lifespan, *, traced: bool = False) -> AsyncApp:
    """Returns an application without operations; `lifespan` yields `{"runtime": Runtime}`, with a
    `tracer` if `traced`."""
    app = AsyncApp(
        __name__,
        lifespan=lifespan,
        middlewares=middlewares(traced=traced),
        validator_map=validator_map(),
        security_map=SECURITY_MAP,
    )
    app._middleware_app.api_cls = Api
    for exception in HANDLED:
        app.add_error_handler(exception, answer)
    return app


def serve_description(
    path: Path, base_path: str, lifespan: Lifespan, *, traced: bool = False
) -> AsyncApp:
    """Returns the application that serves the description at `path` below `base_path`; `traced` is
    as in `application`."""
    app = application(lifespan, traced=traced)
    options = dataclasses.replace(app.middleware.options)
    app.middleware.apis.append(
        API(Resolved.at(path), base_path=base_path.rstrip("/"), **vars(options))
    )
    return app


def serve_again(app: AsyncApp, apis: list[API]) -> None:
    """Adds the `apis` of another Connexion application to `app`."""
    for api in apis:
        ours = {
            name: getattr(app.middleware.options, name)
            for name in ("validator_map", "security_map")
        }
        app.middleware.apis.append(
            API(api.specification, base_path=api.base_path, **{**api.kwargs, **ours})
        )


class Resolved(OpenAPISpecification):  # type: ignore[misc]  # connexion has no types
    """A valid description in one document, with all references resolved.

    Connexion's own class reads each file with Python's YAML parser, validates the document, and
    resolves every reference as a URL.
    """

    def __init__(self, document: Node, *, base_uri: str = "") -> None:
        self._raw_spec = document
        self._spec = resolved(document)
        self._base_uri = base_uri

    @classmethod
    def at(cls, path: Path) -> "Resolved":
        """Returns the specification in the file at `path`. Raises
        `connexion.exceptions.InvalidSpecification`, and the exceptions of `bundle`."""
        return cls(bundled(path, check=check))


def check(document: Node) -> None:
    """Raises `connexion.exceptions.InvalidSpecification` if `document` is not valid OpenAPI."""
    OpenAPISpecification._validate_spec(copy.deepcopy(document))


def resolved(document: Node) -> Node:
    """Returns a copy of `document` in which each reference is replaced by its target. All
    references to one target share one object, so that its schema is compiled once."""
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
