"""The JSON types that a tool's schema allows for an argument.

Tagged arguments write the text 123 and the number alike: the schema says which it is.
"""

import json
from collections.abc import Mapping
from typing import Any

from specllama.engine.chat.parse.literals import literal_as_json
from specllama.engine.formats.json_schema import at_pointer, types_of_value

STRING_ONLY = frozenset({"string"})
ANY = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_MAX_DEPTH = 64


def argument_types(parameters: Any, key: str) -> frozenset[str]:
    """JSON Schema's names of the types that `parameters` (an object's schema) allows for the
    property `key`; all of them if it doesn't say."""
    return _types(inner_schema(parameters, key), parameters, {}, 0)


def inner_schema(parameters: Any, key: str) -> Any:
    """The schema that the property `key` follows, or, in a list's schema, that of its items."""
    found = _property(parameters, parameters, key, set())
    if found is None and isinstance(parameters, Mapping):
        found = parameters.get("items")
    return found


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of an argument that a model wrote as `text`, either in JSON or as it is."""
    if is_json(text) and types_of_value(json.loads(text)) & types:
        return text.strip()
    if "string" not in types:
        empty = {"object", "array"} & types
        if not text.strip() and empty:
            return "{}" if "object" in empty else "[]"
        literal = literal_as_json(text)
        if literal is not None and types_of_value(json.loads(literal)) & types:
            return literal
    return json.dumps(text, ensure_ascii=False)


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _property(schema: Any, root: Any, key: str, seen: set[int]) -> Any:
    # Each schema once: references may go round in circles.
    if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) > _MAX_DEPTH:
        return None
    seen.add(id(schema))
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    inner = [part for word in ("allOf", "anyOf", "oneOf") for part in _parts(schema, word)]
    if "$ref" in schema:
        inner.append(_target(schema["$ref"], root))
    for part in inner:
        found = _property(part, root, key, seen)
        if found is not None:
            return found
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else None


def _types(schema: Any, root: Any, known: dict[int, frozenset[str]], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ANY
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = ANY  # what a schema that contains itself says about itself
    types = ANY
    declared = schema.get("type")
    if isinstance(declared, str):
        types = frozenset({declared})
    elif isinstance(declared, list):
        types = frozenset(name for name in declared if isinstance(name, str))
    if "number" in types:
        types |= {"integer"}
    if "const" in schema:
        types &= types_of_value(schema["const"])
    if isinstance(schema.get("enum"), list):
        types &= frozenset().union(*(types_of_value(value) for value in schema["enum"]))
    if "$ref" in schema:
        types &= _types(_target(schema["$ref"], root), root, known, depth + 1)
    for part in _parts(schema, "allOf"):
        types &= _types(part, root, known, depth + 1)
    for word in ("anyOf", "oneOf"):
        if parts := _parts(schema, word):
            types &= frozenset().union(*(_types(part, root, known, depth + 1) for part in parts))
    known[id(schema)] = types
    return types


def _parts(schema: Mapping[str, Any], word: str) -> list[Any]:
    parts = schema.get(word)
    return parts if isinstance(parts, list) else []


def _target(reference: Any, root: Any) -> Any:
    """The target of a JSON pointer into the same document (`#/$defs/X`)."""
    return at_pointer(root, reference) if isinstance(reference, str) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
