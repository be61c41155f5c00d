"""The API's reference, made from the description: a table of the operations for a page, and the
interactive page that a server has at `/docs`, with the same files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swagger_ui_bundle import swagger_ui_path

from specllama.handlers.description import ASSETS, description_path
from specllama.handlers.http.description import Node, bundle, public, with_body_examples

SERVER = "http://127.0.0.1:8080"
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def description() -> Node:
    """Returns the description that a plain server on this machine has at `/openapi.json`."""
    document = with_body_examples(public(bundle(description_path())))
    document["servers"] = [{"url": SERVER, "description": "A server on this machine"}]
    return document


def operations(document: Node) -> str:
    """Returns a table for each tag, in Markdown."""
    return "\n".join(_tables(document))


def _tables(document: Node) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"\n### {tag['name']}\n"
        yield f"{tag.get('description', '').strip()}\n"
        if outside := tag.get("externalDocs"):
            yield f"[{outside.get('description', outside['url'])}]({outside['url']})\n"
        yield "| operation | |\n|---|---|"
        for path, item in document["paths"].items():
            for method in _METHODS:
                operation = item.get(method)
                if operation and tag["name"] in operation["tags"]:
                    yield f"| `{method.upper()} {path}` | {_summary(operation)} |"


def _summary(operation: Node) -> str:
    text: str = operation["summary"]
    said = [text.rstrip(".")]
    if operation.get("deprecated"):
        said.append("deprecated")
    if option := operation.get("x-option"):
        said.append(f"with `{option}`")
    return "; ".join(said).replace("|", "\\|")


def files(document: Node) -> dict[str, bytes]:
    """Returns the interactive page and its files, by their names in its folder.

    The description is a script there, because a page that is opened from the disk can't fetch a
    file.
    """
    assets = {name: Path(swagger_ui_path, name).read_bytes() for name in ASSETS}
    return {
        "index.html": _PAGE.encode(),
        "description.js": f"const description = {_script(document)};".encode(),
        "openapi.json": json.dumps(document, ensure_ascii=False).encode(),
        **assets,
    }


def _script(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False).replace("</", "<\\/")


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>specllama: the API</title>
<link rel="icon" type="image/png" href="favicon-32x32.png" sizes="32x32">
<link rel="stylesheet" href="swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="swagger-ui-bundle.js"></script>
<script src="description.js"></script>
<script>
SwaggerUIBundle({
  spec: description,
  dom_id: "#swagger-ui",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
})
</script>
</body>
</html>
"""
