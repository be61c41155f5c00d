"""The reference of the API, made from the description."""

import json
from typing import Any

import pytest

from tools.docs import reference


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return reference.description()


def test_every_operation_is_in_the_tables(document: dict[str, Any]) -> None:
    tables = reference.operations(document)
    for path, item in document["paths"].items():
        for method in ("get", "post", "delete"):
            assert (f"| `{method.upper()} {path}` |" in tables) == (method in item), path
    for tag in document["tags"]:
        assert f"### {tag['name']}\n" in tables


def test_an_operation_has_its_option(document: dict[str, Any]) -> None:
    [row] = [
        line
        for line in reference.operations(document).splitlines()
        if line.startswith("| `GET /metrics`")
    ]
    assert row.endswith("with `--metrics` |")


def test_a_tag_links_to_more() -> None:
    outside = {"url": "https://example.com/api", "description": "Their words"}
    operation = {"tags": ["chat"], "summary": "Answer.", "deprecated": True, "x-option": "--chat"}
    document = {
        "tags": [{"name": "chat", "description": "Talk.", "externalDocs": outside}],
        "paths": {"/chat": {"post": operation}},
    }
    table = reference.operations(document)
    assert "### chat\n\nTalk.\n\n[Their words](https://example.com/api)\n" in table
    assert "| `POST /chat` | Answer; deprecated; with `--chat` |" in table


def test_the_interactive_page_needs_nothing_else(document: dict[str, Any]) -> None:
    files = reference.files(document)
    page = files["index.html"].decode()
    assert "http" not in page
    assert all(name in page for name in ("swagger-ui-bundle.js", "swagger-ui.css"))
    script = files["description.js"].decode()
    text = script.removeprefix("const description = ").removesuffix(";")
    assert json.loads(text) == json.loads(files["openapi.json"]) == document
    assert "</" not in script
    assert document["servers"][0]["url"] == "http://127.0.0.1:8080"
