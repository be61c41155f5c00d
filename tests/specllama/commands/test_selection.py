"""A part of the description, by tags."""

from typing import Any

import openapi_spec_validator
import pytest

from specllama.commands.spec import UnknownTagError, of_tags
from specllama.handlers.description import served_description

REF = "#/components/schemas/"


def operation(tag: str, schema: str, **more: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REF + schema}}}
    responses = {"200": {"description": "d", "content": content, **more}}
    return {"operationId": f"get_{schema}", "tags": [tag], "responses": responses}


DOCUMENT: dict[str, Any] = {
    "tags": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
    "paths": {
        "/a": {"get": operation("a", "A"), "post": operation("b", "B"), "x-more": 1},
        "/b": {"get": operation("b", "B", links={"Next": {"operationId": "get_C"}})},
        "/c": {
            "get": operation(
                "c",
                "C",
                links={"A": {"operationId": "get_A"}, "C": {"operationId": "get_C"}},
            )
        },
    },
    "components": {
        "schemas": {
            "A": {"properties": {"d": {"$ref": REF + "D"}}, "example": {"$ref": "#/$defs/x"}},
            "B": {"type": "string"},
            "C": {"items": {"$ref": REF + "C"}},
            "D": {"type": "string"},
        },
        "responses": {"E": {"description": "e"}},
        "securitySchemes": {"key": {"type": "http"}},
    },
}


def test_unused_components_are_dropped() -> None:
    selected = of_tags(DOCUMENT, ["a"])
    assert selected["tags"] == [{"name": "a"}]
    assert selected["paths"] == {"/a": {"get": operation("a", "A"), "x-more": 1}}
    assert selected["components"].keys() == {"schemas", "securitySchemes"}
    assert selected["components"]["schemas"].keys() == {"A", "D"}


def test_links_to_dropped_operations_are_dropped() -> None:
    assert of_tags(DOCUMENT, ["b"])["paths"]["/b"] == {"get": operation("b", "B")}
    links = of_tags(DOCUMENT, ["c"])["paths"]["/c"]["get"]["responses"]["200"]["links"]
    assert links.keys() == {"C"}


def test_several_tags() -> None:
    assert of_tags(DOCUMENT, ["c", "a"])["components"]["schemas"].keys() == {"A", "C", "D"}
    everything = of_tags(DOCUMENT, ["a", "b", "c"])
    assert everything["paths"] == DOCUMENT["paths"]


def test_an_unknown_tag() -> None:
    with pytest.raises(UnknownTagError, match="there is no tag x; the tags are a, b, c"):
        of_tags(DOCUMENT, ["a", "x"])


@pytest.mark.parametrize("tag", [tag["name"] for tag in served_description()["tags"]])
def test_every_part_of_the_description_is_valid(tag: str) -> None:
    part = of_tags(served_description(), [tag])
    assert part["paths"]
    openapi_spec_validator.validate(part)
    whole = served_description()["components"]["schemas"]
    assert len(part["components"].get("schemas", {})) < len(whole)
