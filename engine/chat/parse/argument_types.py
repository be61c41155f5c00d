"""The JSON types that a tool's schema allows for an argument.

Tagged arguments don't distinguish the text 123 from the number; only the schema does.
"""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from specllama.engine.chat.parse.json_stream import JsonError, Sink, read_escape
from specllama.engine.chat.parse.reader import Reader, Step
from specllama.engine.formats.json_schema import at_pointer, types_of_value

# ---- Translates literals of programming languages to JSON while their text arrives.
#
# Supports Python's literals, JSON, and mixtures: texts in single quotes, in double quotes or
# in the model's own quotes, keys with or without quotes, True and true.


_MAX_DEPTH = 64
_WORD = re.compile(r"[^\s,:\"'()\[\]{}<>=]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NAMED = {"True": "true", "False": "false", "None": "null"}
_JSON_WORDS = frozenset({"true", "false", "null"})
_CODES = {"x": 2, "U": 8}  # digits of the escapes that Python has in addition to JSON's
_HEX = re.compile(r"[0-9a-fA-F]+")
_ESCAPED = "\\\"'/bfnrtu"
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


def copy_literal(reader: Reader, out: Sink, quote: str, depth: int = 0) -> Step[None]:
    """Copies the next value to `out` as JSON. `quote` is an additional quote of texts; without it,
    words have to be in quotes.

    Raises JsonError for text that isn't a value, and for a value without an end.
    """
    if depth > _MAX_DEPTH:
        raise JsonError
    if (yield from _copied_text(reader, out, quote)):
        return
    opening = yield from reader.peek()
    if opening and opening in _CLOSERS:
        reader.take(1)
        yield from _copy_items(reader, out, quote, opening, depth)
        return
    word = yield from reader.run(_WORD)
    if not word or reader.cut_off:
        raise JsonError
    named = _NAMED.get(word, word)
    is_json = named in _JSON_WORDS or _NUMBER.fullmatch(named)
    if not (is_json or quote):
        raise JsonError
    out(named if is_json else json.dumps(word, ensure_ascii=False))


def literal_as_json(text: str) -> str | None:
    """Returns the JSON of a whole literal; None if `text` isn't one."""
    reader, pieces = Reader(), list[str]()
    reader.push(text.strip())
    reader.end()
    try:
        for _ in copy_literal(reader, pieces.append, ""):
            pass
    except JsonError:
        return None
    return None if reader.rest() else "".join(pieces)


def _copy_items(reader: Reader, out: Sink, quote: str, opening: str, depth: int) -> Step[None]:
    """Copies the rest of a list, a tuple or an object."""
    is_object, closing = opening == "{", _CLOSERS[opening]
    out("{" if is_object else "[")
    count = 0
    while True:
        yield from reader.space()
        if (yield from reader.accept(closing)):
            break
        if count:
            if not (yield from reader.accept(",")):
                raise JsonError
            yield from reader.space()
            if (yield from reader.accept(closing)):
                break
            out(", ")
        count += 1
        if is_object:
            if not (yield from _copied_text(reader, out, quote)):
                key = yield from reader.run(_WORD)
                out(json.dumps(key, ensure_ascii=False))
            if not (yield from reader.accept_spaced(":")):
                raise JsonError
            out(": ")
            yield from reader.space()
        yield from copy_literal(reader, out, quote, depth + 1)
    out("}" if is_object else "]")


def _copied_text(reader: Reader, out: Sink, quote: str) -> Step[bool]:
    """Copies a text in quotes. Returns False if there is none."""

    def escaped(text: str) -> None:
        out(json.dumps(text, ensure_ascii=False)[1:-1])

    if len(quote) > 1 and (yield from reader.accept(quote)):
        out('"')
        space, marker = yield from reader.until((quote,), escaped)
        escaped(space)
        if not marker:
            raise JsonError
        out('"')
        return True
    first = yield from reader.peek()
    if first not in ("'", '"'):
        return False
    reader.take(1)
    out('"')
    plain = re.compile(rf"[^\\{first}]*")
    while True:
        escaped(reader.take_while(plain))
        next = yield from reader.peek()
        if next == first:
            if (yield from _is_last(reader)):
                break
            escaped(reader.take(1))
        elif next == "\\":
            escaped((yield from _escape(reader)))
        elif not next:
            raise JsonError
    out('"')
    return True


def _is_last(reader: Reader) -> Step[bool]:
    """Takes a quote if it ends its text: if the next character can follow a value. Some models and
    templates don't escape the quotes in texts."""
    place = reader.mark()
    reader.take(1)
    yield from reader.space()
    next = yield from reader.peek()
    is_last = not next or next in ",:)]}<"
    reader.rewind(place)
    if is_last:
        reader.take(1)
    return is_last


def _escape(reader: Reader) -> Step[str]:
    pair = yield from reader.peek(2)
    if len(pair) < 2:
        raise JsonError
    if pair[1] in _CODES:
        size = _CODES[pair[1]]
        code = (yield from reader.peek(2 + size))[2:]
        if len(code) == size and _HEX.fullmatch(code) and int(code, 16) <= sys.maxunicode:
            reader.take(2 + size)
            return chr(int(code, 16)).encode(errors="replace").decode()
    # A backslash before any other character stands for itself.
    return (yield from read_escape(reader)) if pair[1] in _ESCAPED else reader.take(1)


STRING_ONLY = frozenset({"string"})
ANY = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_MAX_SCHEMA_DEPTH = 64


def argument_types(parameters: Any, key: str) -> frozenset[str]:
    """Returns JSON Schema's names of the types that `parameters` (an object's schema) allows for
    the property `key`; all types if it doesn't restrict them."""
    return _types(inner_schema(parameters, key), parameters, {}, 0)


def inner_schema(parameters: Any, key: str) -> Any:
    """Returns the schema of the property `key`, or, in a list's schema, of its items."""
    found = _property(parameters, parameters, key, set())
    if found is None and isinstance(parameters, Mapping):
        found = parameters.get("items")
    return found


def as_json(text: str, types: frozenset[str]) -> str:
    """Returns the JSON text of an argument that a model wrote as `text`, either in JSON or as it
    is."""
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
    # Visit each schema once, as references may be circular.
    if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) > _MAX_SCHEMA_DEPTH:
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
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return ANY
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = ANY  # used for the recursion if the schema contains itself
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
    """Returns the target of a JSON pointer into the same document (`#/$defs/X`)."""
    return at_pointer(root, reference) if isinstance(reference, str) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
