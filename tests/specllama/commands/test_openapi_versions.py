"""The description in later versions of OpenAPI."""

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openapi_spec_validator
import pytest
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from specllama.commands.spec import VERSIONS, Node, Version, in_version
from specllama.engine.formats.schema_check import to_2020_12
from specllama.handlers.description import served_description

ANNOTATIONS = {"title", "description", "examples", "deprecated", "default"}
NULL = {"type": "string", "nullable": True, "enum": ["a"]}


def with_schema(schema: Node) -> Node:
    return {"openapi": "3.0.3", "paths": {}, "components": {"schemas": {"A": schema}}}


def converted(schema: Node, version: Version = "3.1") -> Any:
    return in_version(with_schema(schema), version)["components"]["schemas"]["A"]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_valid(version: Version) -> None:
    document = in_version(served_description(), version)
    assert document["openapi"].startswith(version)
    openapi_spec_validator.validate(document)
    with pytest.raises(OpenAPIValidationError):
        openapi_spec_validator.validate({**document, "info": {}})


def test_the_original_is_left_as_it_is() -> None:
    document = served_description()
    before = copy.deepcopy(document)
    in_version(document, "3.2")
    assert document == before
    assert in_version(document, "3.0") is document


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (NULL, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"nullable": True, "anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}]}),
        (
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        ),
        (
            {"type": "number", "maximum": 2, "exclusiveMaximum": True, "exclusiveMinimum": False},
            {"type": "number", "exclusiveMaximum": 2},
        ),
        (
            {"type": "object", "example": {"nullable": True}},
            {"type": "object", "examples": [{"nullable": True}]},
        ),
        ({"properties": {"nullable": NULL}}, {"properties": {"nullable": converted(NULL)}}),
        ({"items": NULL, "x-default": []}, {"items": converted(NULL), "x-default": []}),
        ({"not": NULL}, {"not": converted(NULL)}),
        ({"additionalProperties": NULL}, {"additionalProperties": converted(NULL)}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
        ({"allOf": [NULL, {"$ref": "#/x"}]}, {"allOf": [converted(NULL), {"$ref": "#/x"}]}),
    ],
)
def test_schemas_become_json_schemas(before: Node, after: Node) -> None:
    assert converted(before) == after
    assert converted(before, "3.2") == after


def test_schemas_mean_the_same() -> None:
    # Requests are validated with 3.0, which is made differently.
    ours = in_version(served_description(), "3.1")["components"]["schemas"]
    for name, schema in served_description()["components"]["schemas"].items():
        assert without_annotations(ours[name]) == to_2020_12(schema), name


def without_annotations(schema: Any) -> Any:
    """The constraints alone."""
    if isinstance(schema, list):
        return [without_annotations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: without_annotations(each) for name, each in value.items()}
        elif key not in ANNOTATIONS and not key.startswith("x-"):
            result[key] = value if key == "enum" else without_annotations(value)
    return result


def media(document: Node, kind: str) -> Iterator[Node]:
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict):
                for response in operation["responses"].values():
                    if kind in response.get("content", {}):
                        yield response["content"][kind]


def test_streams_have_item_schemas() -> None:
    document = in_version(served_description(), "3.2")
    streams = list(media(document, "text/event-stream"))
    assert len(streams) > 10
    for stream in streams:
        assert "itemSchema" in stream
        assert not {"schema", "x-event-data-schema"} & stream.keys()
    assert all(
        "x-event-data-schema" in each
        for each in media(served_description(), "text/event-stream")
        if "x-event-end" in each
    )


def test_a_stream_of_events() -> None:
    stream = {
        "schema": {"$ref": "#/components/schemas/A"},
        "x-event-data-schema": NULL,
        "x-event-end": "[DONE]",
        "examples": {"one": {"summary": "One", "value": {"data": "{}"}}},
    }
    assert of_stream("text/event-stream", stream) == {
        "itemSchema": {
            "allOf": [
                {"$ref": "#/components/schemas/A"},
                {
                    "type": "object",
                    "properties": {
                        "data": {
                            "anyOf": [
                                {
                                    "type": "string",
                                    "contentMediaType": "application/json",
                                    "contentSchema": converted(NULL),
                                },
                                {"const": "[DONE]", "description": "The end of the stream."},
                            ]
                        }
                    },
                },
            ]
        },
        "x-event-end": "[DONE]",
        "examples": {"one": {"summary": "One", "dataValue": [{"data": "{}"}]}},
    }


def test_a_stream_of_lines() -> None:
    stream = {"schema": {"type": "string"}, "x-line-schema": NULL, "example": '"a"\n'}
    assert of_stream("application/x-ndjson", stream) == {
        "itemSchema": converted(NULL),
        "examples": {"example": {"serializedValue": '"a"\n'}},
    }


def of_stream(kind: str, stream: Node) -> Any:
    document = with_schema({"type": "object"})
    document["paths"] = {"/": {"get": {"responses": {"200": {"content": {kind: stream}}}}}}
    [found] = media(in_version(document, "3.2"), kind)
    return found


def test_a_converted_schema_validates_as_before() -> None:
    schema = converted(NULL)
    assert jsonschema_rs.is_valid(schema, None)
    assert not jsonschema_rs.is_valid(schema, "b")
