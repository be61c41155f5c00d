"""The AsyncAPI document is up to date, complete, and describes the same messages."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specllama.handlers.http.description import bundle
from tools.schemas import asyncapi
from tools.schemas.__main__ import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def document() -> Any:
    return asyncapi.document()


def test_the_file_is_of_this_description() -> None:
    assert asyncapi.PATH.read_text("utf-8") == asyncapi.text(), "run: python -m tools.schemas"


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for child in node for found in references(child)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [found for child in node.values() for found in references(child)]


def test_every_reference_has_a_target(document: Any) -> None:
    found = references(document)
    assert found
    for reference in found:
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_each_message_of_the_websocket_is_a_message(document: Any) -> None:
    schemas = bundle(ROOT / "openapi" / "server.yaml")["components"]["schemas"]
    for way, union in ("receive", "ResponseSocketRequest"), ("send", "ResponseSocketEvent"):
        operation = document["operations"][f"{way}_connect_responses"]
        named = [each["$ref"].rpartition("/")[2] for each in operation["messages"]]
        described = [each["$ref"].rpartition("/")[2] for each in schemas[union]["anyOf"]]
        assert operation["action"] == way
        assert named == described


def validator(document: Any, message: str) -> Draft202012Validator:
    payload = document["components"]["messages"][message]["payload"]
    return Draft202012Validator({**payload, "components": document["components"]})


def test_the_schemas_accept_and_refuse_messages(document: Any) -> None:
    create = validator(document, "ResponseCreateEvent")
    assert create.is_valid({"type": "response.create", "input": "hello", "store": None})
    assert not create.is_valid({"type": "response.create", "input": 5})
    assert not create.is_valid({"type": "response.steer", "input": "hello"})
    steer = validator(document, "ResponseSteerEvent")
    assert steer.is_valid({"type": "response.steer", "previous_response_id": "r", "input": "hello"})
    assert not steer.is_valid({"type": "response.steer", "input": "hello"})
