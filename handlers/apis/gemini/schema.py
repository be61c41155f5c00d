"""Converts schemas in Google's form, a subset of OpenAPI's with types in upper case, to JSON
schemas.

The validation of requests doesn't check the contents of these schemas. Invalid keywords are kept,
so that they are refused like those of any JSON schema.
"""

import re
from collections.abc import Mapping
from typing import Any

from specllama.engine.errors import invalid_request

JsonSchema = dict[str, Any]

_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_UNSPECIFIED = "type_unspecified"
_NAMES = {"defs": "$defs", "ref": "$ref"}
_UNDERSCORE = re.compile("(?<=[a-z])_([a-z])")
_NAMED = ("properties", "$defs")
_INNER = ("items", "additionalProperties")
_BRANCHES = ("anyOf", "prefixItems")
_DROPPED = ("nullable", "propertyOrdering", "example")
"""Keywords that a JSON schema expresses in another way, or doesn't have."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def json_schema(schema: Mapping[str, Any]) -> JsonSchema:
    """Returns the equivalent JSON schema. Keywords may be spelled with underscores, and numbers may
    be texts. Raises EngineError (invalid_request_error) for a schema that is nested too deep."""
    try:
        return _converted(schema)
    except RecursionError:
        raise invalid_request("a schema is nested too deep") from None


def _converted(schema: Mapping[str, Any]) -> JsonSchema:
    given = {_keyword(name): value for name, value in schema.items() if value is not None}
    made = {name: _value(name, value) for name, value in given.items() if name not in _DROPPED}
    if (kind := _type(made.pop("type", _UNSPECIFIED))) is not None:
        made["type"] = kind
        if kind in ("integer", "number") and isinstance(values := made.get("enum"), list):
            made["enum"] = [*map(_number, values)]  # Google's form allows only texts here
    order = given.get("propertyOrdering")
    if isinstance(order, list) and isinstance(properties := made.get("properties"), dict):
        names = [name for name in order if isinstance(name, str) and name in properties]
        made["properties"] = {name: properties[name] for name in [*names, *properties]}
    return _nullable(made) if given.get("nullable") is True else made


def _keyword(name: str) -> str:
    camel = _UNDERSCORE.sub(lambda found: found[1].upper(), name)
    return _NAMES.get(camel, camel)


def _value(name: str, value: Any) -> Any:
    """Returns the value of the keyword `name`, converted."""
    if name in _NAMED and isinstance(value, Mapping):
        return {each: _schema(inner) for each, inner in value.items()}
    if name in _INNER:
        return _schema(value)
    if name in _BRANCHES and isinstance(value, list):
        return [*map(_schema, value)]
    if name == "$ref" and isinstance(value, str):
        return value.replace("#/defs/", "#/$defs/", 1)
    if name.startswith(("min", "max")):
        return _number(value)
    return value


def _schema(value: Any) -> Any:
    return _converted(value) if isinstance(value, Mapping) else value


def _number(value: Any) -> Any:
    """Returns the number in a text, which is how the JSON form of protocol buffers writes 64-bit
    integers; any other value unchanged."""
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _type(value: Any) -> Any:
    """Returns the type in lower case; None for `TYPE_UNSPECIFIED`."""
    if not isinstance(value, str):
        return value
    lower = value.lower()
    if lower == _UNSPECIFIED:
        return None
    return lower if lower in _TYPES else value


def _nullable(schema: JsonSchema) -> JsonSchema:
    """Returns a schema that allows null and the values of `schema`."""
    if isinstance(kind := schema.get("type"), str):
        made = {**schema, "type": [kind, "null"]}
        if isinstance(values := made.get("enum"), list):
            made["enum"] = [*values, None]
        return made
    if not schema.keys() & {"anyOf", "$ref", "enum"}:
        return schema  # of any type, so that null is allowed
    definitions = schema.pop("$defs", None)
    made = {"anyOf": [schema, {"type": "null"}]}
    return made if definitions is None else {**made, "$defs": definitions}
