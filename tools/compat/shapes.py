"""What a schema allows, independent of how it is written.

A `Shape` has one `Kind` for each JSON type that is allowed. `allOf` is the intersection of shapes,
`anyOf` and `oneOf` are their union, and references are followed. So a schema keeps its shape if it
moves to a component, gets a title, or is split and combined differently.

A union of objects is one object with the properties of all branches. So a change in one branch is
not noticed if another branch makes up for it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

Node = Mapping[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
"""All types. An integer is a number, too: a schema of numbers allows both."""

LOWER = {"minimum": "number", "minLength": "string", "minItems": "array", "minProperties": "object"}
UPPER = {"maximum": "number", "maxLength": "string", "maxItems": "array", "maxProperties": "object"}
_TAKES_DEFAULT = ("x-default", "default")


@dataclass(frozen=True)
class Kind:
    """The allowed values of one type. `values` and `patterns` are None if they are unrestricted."""

    values: frozenset[str] | None = None
    patterns: frozenset[str] | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    properties: Mapping[str, "Shape"] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    closed: bool = False
    """True if no other properties are allowed."""
    items: "Shape | None" = None


@dataclass(frozen=True)
class Shape:
    kinds: Mapping[str, Kind]
    default: str | None = None
    """The value that the server uses by default, as JSON; None if the description has no
    default."""


ANY = Shape({name: Kind() for name in TYPES})


class Shapes:
    """The shapes of one document."""

    def __init__(self, document: Node) -> None:
        self._document = document
        self._known: dict[str, Shape] = {}

    def of(self, schema: Node) -> Shape:
        if "$ref" in schema:
            return self._referred(schema["$ref"])
        shape = reduce(_both, (self.of(each) for each in schema.get("allOf", ())), _own(schema))
        for union in ("anyOf", "oneOf"):
            if schema.get(union):
                shape = _both(shape, reduce(_either, (self.of(each) for each in schema[union])))
        shape = _both(shape, self._parts(schema))
        defaults = [json.dumps(schema[key]) for key in _TAKES_DEFAULT if key in schema]
        return replace(shape, default=defaults[0] if defaults else shape.default)

    def resolve(self, node: Node) -> Node:
        """Returns the target of the reference `node`, or `node` itself."""
        while "$ref" in node:
            reference, node = node["$ref"], self._document
            for part in reference.split("/")[1:]:
                node = node[part.replace("~1", "/").replace("~0", "~")]
        return node

    def _referred(self, reference: str) -> Shape:
        if reference not in self._known:
            self._known[reference] = ANY  # for a schema that refers to itself
            self._known[reference] = self.of(self.resolve({"$ref": reference}))
        return self._known[reference]

    def _parts(self, schema: Node) -> Shape:
        """Returns the shape of the schema's properties and items."""
        others = schema.get("additionalProperties")
        members = Kind(
            properties={name: self.of(each) for name, each in schema.get("properties", {}).items()},
            required=frozenset(schema.get("required", ())),
            closed=others is False,
        )
        items = schema.get("items")
        listed = Kind(items=self.of(items) if items is not None else None)
        return Shape({**ANY.kinds, "object": members, "array": listed})


def _own(schema: Node) -> Shape:
    """Returns the shape of the schema's type, enum, pattern and bounds."""
    named = schema.get("type")
    types = set(TYPES if named is None else [named] if isinstance(named, str) else named)
    if "number" in types:
        types.add("integer")
    if schema.get("nullable") and named is not None:
        types.add("null")
    values = schema.get("enum")
    if values is not None and schema.get("nullable"):
        values = [*values, None]
    if "x-supported-values" in schema:
        # Other values are described but rejected; null, where allowed, stands for no value.
        values = [*schema["x-supported-values"], None]
    if values is not None:
        types &= {_type(value) for value in values}
    kinds = {}
    for name in sorted(types, key=TYPES.index):
        about = "number" if name == "integer" else name
        bounds = {
            k: schema[k] for k, of in {**LOWER, **UPPER}.items() if of == about and k in schema
        }
        pattern = schema.get("pattern") if name == "string" else None
        kinds[name] = Kind(
            values=None
            if values is None
            else frozenset(json.dumps(each) for each in values if _type(each) == name),
            patterns=None if pattern is None else frozenset([pattern]),
            bounds=bounds,
        )
    return Shape(kinds)


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _both(one: Shape, other: Shape) -> Shape:
    """Returns the intersection of both shapes."""
    shared = [name for name in one.kinds if name in other.kinds]
    kinds = {name: _narrower(one.kinds[name], other.kinds[name]) for name in shared}
    return Shape(kinds, one.default if one.default is not None else other.default)


def _either(one: Shape, other: Shape) -> Shape:
    """Returns the union of both shapes."""
    kinds = {
        name: _wider(one.kinds[name], other.kinds[name])
        if name in one.kinds and name in other.kinds
        else one.kinds.get(name) or other.kinds[name]
        for name in TYPES
        if name in one.kinds or name in other.kinds
    }
    return Shape(kinds, one.default if one.default is not None else other.default)


def _narrower(one: Kind, other: Kind) -> Kind:
    return Kind(
        values=_and(one.values, other.values),
        patterns=_or(one.patterns, other.patterns) or one.patterns or other.patterns,
        bounds=_bounds({*one.bounds, *other.bounds}, one, other, tight=True),
        properties=_properties(one, other, _both),
        required=one.required | other.required,
        closed=one.closed or other.closed,
        items=_both(one.items or ANY, other.items or ANY) if one.items or other.items else None,
    )


def _wider(one: Kind, other: Kind) -> Kind:
    return Kind(
        values=_or(one.values, other.values),
        patterns=_or(one.patterns, other.patterns),
        bounds=_bounds(one.bounds.keys() & other.bounds.keys(), one, other, tight=False),
        properties=_properties(one, other, _either),
        required=one.required & other.required,
        closed=one.closed and other.closed,
        items=_either(one.items, other.items) if one.items and other.items else None,
    )


def _and(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return one & other if one is not None and other is not None else one if other is None else other


def _or(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return one | other if one is not None and other is not None else None


def _bounds(names: Iterable[str], one: Kind, other: Kind, tight: bool) -> dict[str, float]:
    """Returns the bounds of both kinds: the narrower ones if `tight`, otherwise the wider ones."""
    found = {}
    for name in sorted(names):
        given = [kind.bounds[name] for kind in (one, other) if name in kind.bounds]
        found[name] = max(given) if (name in LOWER) is tight else min(given)
    return found


def _properties(one: Kind, other: Kind, merge: Callable[[Shape, Shape], Shape]) -> dict[str, Shape]:
    merged = {**one.properties, **other.properties}
    for name in one.properties.keys() & other.properties.keys():
        merged[name] = merge(one.properties[name], other.properties[name])
    return merged
