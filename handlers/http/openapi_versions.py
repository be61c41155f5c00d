"""The description in later versions of OpenAPI, for tools that take these.

It is written in 3.0. From 3.1 on, schemas are those of JSON Schema 2020-12: `null` is a type, and
exclusive bounds are numbers (https://learn.openapis.org/upgrading/v3.0-to-v3.1). From 3.2 on, the
items of a stream have a schema (https://spec.openapis.org/oas/v3.2.0#media-type-object).
"""

import copy
from typing import Any, Literal, get_args

Node = dict[str, Any]
Version = Literal["3.0", "3.1", "3.2"]

VERSIONS: tuple[Version, ...] = get_args(Version)

_FULL = {"3.1": "3.1.1", "3.2": "3.2.0"}
_EVENTS = "text/event-stream"
_SCHEMAS = frozenset({"schema", "x-event-data-schema", "x-line-schema"})
_EXAMPLES = frozenset({"example", "examples"})


def in_version(document: Node, version: Version) -> Node:
    """`document`, a bundled description in 3.0, in another version; the original stays as it is."""
    if version == "3.0":
        return document
    converted: Node = _converted(copy.deepcopy(document), version)
    schemas = converted["components"]["schemas"]
    converted["components"]["schemas"] = {name: _schema(each) for name, each in schemas.items()}
    return {**converted, "openapi": _FULL[version]}


def _converted(node: Any, version: Version) -> Any:
    """What isn't a schema, with the schemas in it as JSON Schemas."""
    if isinstance(node, list):
        return [_converted(child, version) for child in node]
    if not isinstance(node, dict):
        return node
    result: Node = {}
    for key, child in node.items():
        if key in _SCHEMAS:
            result[key] = _schema(child)
        elif key == "content" and version == "3.2":
            result[key] = {
                kind: _with_items(kind, _converted(media, version)) for kind, media in child.items()
            }
        elif key in _EXAMPLES or key == "schemas":
            result[key] = child
        else:
            result[key] = _converted(child, version)
    return result


# ---- 3.1 ---------------------------------------------------------------------------------


def _schema(schema: Node) -> Node:
    """A schema of OpenAPI 3.0 as a JSON Schema, annotations included."""
    result: Node = {}
    for keyword, value in schema.items():
        match keyword:
            case "nullable":
                pass  # about a type that is dealt with below
            case "properties":
                result[keyword] = {name: _schema(child) for name, child in value.items()}
            case "allOf" | "anyOf" | "oneOf":
                result[keyword] = [_schema(child) for child in value]
            case "items" | "not" | "additionalProperties":
                result[keyword] = _schema(value) if isinstance(value, dict) else value
            case "example":
                result["examples"] = [value]
            case "minimum" | "maximum" if schema.get(_exclusive(keyword)) is True:
                result[_exclusive(keyword)] = value
            case "exclusiveMinimum" | "exclusiveMaximum":
                pass  # booleans, about a bound that is dealt with above
            case _:
                result[keyword] = value
    if schema.get("nullable") and "type" in result:  # without a type it has no effect in 3.0
        result["type"] = [result["type"], "null"]
        if "enum" in result and None not in result["enum"]:
            result["enum"] = [*result["enum"], None]
    return result


def _exclusive(bound: str) -> str:
    return f"exclusive{bound.capitalize()}"


# ---- 3.2 ---------------------------------------------------------------------------------


def _with_items(kind: str, media: Node) -> Node:
    """A media type object of a stream, with the schema of its items in the place of the schema of
    an event or of the whole text, which is what 3.0 has words for."""
    if "x-event-data-schema" in media:
        return _of_events(media)
    if "x-line-schema" in media:
        return _of_lines(media)
    if kind == _EVENTS:
        return _with_item_examples({"itemSchema": media["schema"]}, media)
    return media


def _of_events(media: Node) -> Node:
    data: Node = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": media["x-event-data-schema"],
    }
    if (end := media.get("x-event-end")) is not None:
        data = {"anyOf": [data, {"const": end, "description": "The end of the stream."}]}
    properties = {"type": "object", "properties": {"data": data}}
    return _with_item_examples({"itemSchema": {"allOf": [media["schema"], properties]}}, media)


def _with_item_examples(result: Node, media: Node) -> Node:
    """With the examples, which are single events in 3.0, as streams of that event."""
    return result | _examples(media, lambda value: {"dataValue": [value]})


def _of_lines(media: Node) -> Node:
    result = {"itemSchema": media["x-line-schema"]}
    return result | _examples(media, lambda value: {"serializedValue": value})


def _examples(media: Node, shown: Any) -> Node:
    given = dict(media.get("examples", {}))
    if "example" in media:
        given["example"] = {"value": media["example"]}
    examples = {
        name: {k: v for k, v in each.items() if k != "value"} | shown(each["value"])
        for name, each in given.items()
    }
    rest = {key: value for key, value in media.items() if key == "x-event-end"}
    return rest | ({"examples": examples} if examples else {})
