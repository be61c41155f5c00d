"""The OpenAPI description: as one JSON or YAML document, and as an interactive page."""

import asyncio
import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import yaml
from starlette.responses import Response

from specllama.engine.errors import EngineError
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.description import bundled, public, with_body_examples
from specllama.handlers.running.runtime import runtime

ASSETS = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-16x16.png": "image/png",
    "favicon-32x32.png": "image/png",
}
_CACHED = {"cache-control": "public, max-age=86400", "x-content-type-options": "nosniff"}

_SCRIPT = """
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
})
"""

# Every address in the page is relative, so that it works below any prefix.
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>specllama</title>
<link rel="icon" type="image/png" href="docs/favicon-32x32.png" sizes="32x32">
<link rel="icon" type="image/png" href="docs/favicon-16x16.png" sizes="16x16">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>{_SCRIPT}</script>
</body>
</html>
"""

_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_GUARDED = {
    # Nothing from other hosts, only the page's own scripts, and no frame around it. Swagger UI sets
    # inline styles.
    "content-security-policy": (
        f"default-src 'none'; script-src 'self' 'sha256-{_HASH}'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def description_path() -> Path:
    """Returns the path of the root file, which is in the same place in the repository and in an
    installed package."""
    return Path(__file__).parent.parent / "openapi" / "server.yaml"


@functools.lru_cache(maxsize=8)
def served_description(base_path: str = "", predict_route: str = "") -> dict[str, Any]:
    """Returns the description as one document, as it is served below `base_path`. `predict_route`,
    if given, replaces the path of `POST /predict`. Callers must not change it."""
    document = with_body_examples(public(bundled(description_path())))
    if predict_route:
        paths = document["paths"].items()
        document["paths"] = {predict_route if p == "/predict" else p: item for p, item in paths}
    document["servers"] = [{"url": base_path or "/", "description": "This server"}]
    return document


def as_json(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # a base of two
    """Writes texts of several lines as literal blocks, and no aliases for repeated values."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(document: dict[str, Any]) -> bytes:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


@functools.lru_cache(maxsize=8)
def _json_below(base_path: str, predict_route: str) -> bytes:
    return as_json(served_description(base_path, predict_route))


@functools.lru_cache(maxsize=8)
def _yaml_below(base_path: str, predict_route: str) -> bytes:
    return as_yaml(served_description(base_path, predict_route))


def _predict_route() -> str:
    vertex = runtime().options.vertex
    return vertex.aip_predict_route if vertex.is_on() else ""


def _base_path() -> str:
    """Returns the part of the current request's path before the paths of the description."""
    scope = current_scope()
    base: str = scope["extensions"]["connexion_routing"]["api_base_path"]
    return str(scope.get("root_path", "")) + base


async def get_openapi_json() -> Response:
    """The bundled description, which is rendered once, in a thread."""
    content = await asyncio.to_thread(_json_below, _base_path(), _predict_route())
    return Response(content, media_type="application/json")


async def get_openapi_yaml() -> Response:
    content = await asyncio.to_thread(_yaml_below, _base_path(), _predict_route())
    return Response(content, media_type="application/yaml")


async def get_docs() -> Response:
    """The interactive page."""
    return Response(_PAGE, media_type="text/html", headers=_GUARDED)


async def get_docs_asset(asset: str) -> Response:
    """A file of the interactive page. Raises EngineError (not_found_error)."""
    media_type = ASSETS.get(asset)
    if media_type is None:
        raise EngineError.of("not_found_error", f"there is no asset {asset}")
    return Response(_asset(asset), media_type=media_type, headers=_CACHED)


@functools.cache
def _asset(name: str) -> bytes:
    from swagger_ui_bundle import swagger_ui_path

    return Path(swagger_ui_path, name).read_bytes()
