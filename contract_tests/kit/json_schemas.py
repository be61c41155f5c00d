"""Random JSON schemas, as input for tests of grammars made from schemas.

Texts, lists, objects and numbers are bounded, so that every text which matches a schema ends.
"""

import json
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = st.sampled_from(["id", "name", "a b", "größe", 'say "x"', "back\\slash", "日本", "x1"])
PATTERNS = (
    *("^[a-z]{1,8}$", "^[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5}){0,2}$", "^(yes|no|maybe)$"),
    *(r"^\d{3}-\d{4}$", "^#[0-9a-f]{6}$", '^[^\\s"]{2,5}$', "^v[0-9]{1,2}(\\.[0-9]{1,2}){2}$"),
    *("^(a|ab)(c|bcd)$", "^[äöü€😀]{1,3}$", "^$", "^[\\w.]{1,6}@[a-z]{2,4}\\.de$"),
)
LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1000, 1000),
    st.floats(-100, 100).map(lambda x: round(x, 2)),
    st.text(max_size=8),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(NAMES, st.integers(0, 9), max_size=2),
)


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(["length", "pattern", "format"]))
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}
    if kind == "format":
        return {"type": "string", "format": draw(st.sampled_from(["date", "time", "ipv4", "uuid"]))}
    low = draw(st.integers(0, 5))
    return {"type": "string", "minLength": low, "maxLength": low + draw(st.integers(0, 12))}


@st.composite
def integers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-2000, 2000))
    high = low + draw(st.integers(0, 3000))
    below = draw(st.sampled_from(["minimum", "exclusiveMinimum"]))
    above = draw(st.sampled_from(["maximum", "exclusiveMaximum"]))
    low -= below == "exclusiveMinimum"
    high += above == "exclusiveMaximum"
    return {"type": "integer", below: low, above: high}


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-50, 50)) / 4
    return {"type": "number", "minimum": low, "maximum": low + draw(st.integers(1, 400)) / 8}


LEAVES = st.one_of(
    strings(),
    integers(),
    numbers(),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    LITERALS.map(lambda value: {"const": value}),
    st.lists(LITERALS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.just({"type": ["boolean", "null"]}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    names = list(properties)
    required = [name for name in names if draw(st.booleans())]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    match draw(st.sampled_from(["closed", "closed", "more", "pattern"])):
        case "more":
            schema["additionalProperties"] = draw(inner)
            schema["maxProperties"] = len(names) + draw(st.integers(0, 2))
        case "pattern":
            schema["patternProperties"] = {"^[A-Z]{1,3}$": draw(inner)}
            schema["maxProperties"] = len(names) + 2
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    low = draw(st.integers(0, 2))
    schema: Schema = {"type": "array", "minItems": low, "maxItems": low + draw(st.integers(0, 2))}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    schema["items"] = draw(inner)
    return schema


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    branches = draw(st.lists(inner, min_size=1, max_size=3))
    keyword = draw(st.sampled_from(["anyOf", "anyOf", "oneOf"]))
    return {keyword: branches}


@st.composite
def tagged_unions(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    tags = draw(st.lists(st.sampled_from(["cat", "dog", "emu"]), min_size=1, unique=True))
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": tag}, "value": draw(inner)},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for tag in tags
    ]
    return {"oneOf": branches}


@st.composite
def both(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    """A conjunction of two schemas that can be satisfied together."""
    first = draw(objects(inner))
    second = {"required": [n for n in first["properties"] if draw(st.booleans())]}
    return {"allOf": [first, second]}


def _compound(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    kinds = (objects, arrays, unions, tagged_unions, both)
    return st.one_of([kind(inner) for kind in kinds])


PLAIN = st.recursive(LEAVES, _compound, max_leaves=6)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Generates a schema. Some have definitions, and one definition may contain itself."""
    kind = draw(st.sampled_from(["plain", "plain", "definitions", "tree"]))
    if kind == "plain":
        return draw(PLAIN)
    definitions = {"leaf": draw(LEAVES), "a/b~c": draw(PLAIN)}
    references = st.sampled_from([{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/a~1b~0c"}])
    if kind == "definitions":
        return {**draw(_compound(references)), "$defs": definitions}
    definitions["tree"] = {
        "type": "object",
        "properties": {
            "value": draw(references),
            "child": {"$ref": "#/$defs/tree"},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/tree", "$defs": definitions}


EXTRAS: list[Schema] = [
    {"not": {"const": 1}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"contains": {"type": "null"}},
    {"uniqueItems": True},
    {"propertyNames": {"pattern": "^[a-z]+$"}},
    {"dependentRequired": {"id": ["name"]}},
    {"dependentSchemas": {"id": {"required": ["name"]}}},
    {"unevaluatedProperties": False},
    {"unevaluatedProperties": {"type": "string"}},
    {"unevaluatedItems": False},
    {"minProperties": 2},
    {"maximum": 2**63},
    {"exclusiveMinimum": -(2**64)},
    {"minimum": 2**64},
    {"multipleOf": 1e-300},
    {"format": "json-pointer"},
    {"format": "of our own"},
    {"oneOf": [{"type": ["object", "string"]}, {"minLength": 1}, {"minProperties": 1}]},
    {"patternProperties": {"^a": {}, "b$": {"type": "null"}}},
    {"required": "name"},
    *({"pattern": p} for p in ("a(?=b)", "(?<!x)y", r"(a)\1", r"\bfoo\b", "(", "^a{70000}$")),
    {"description": 5, "title": None, "default": [], "examples": {}, "nullable": True},
]


@st.composite
def with_extras(draw: st.DrawFn) -> Schema:
    """Generates a schema in which some parts have keywords that not every server can enforce."""
    schema: Schema = _copied(draw(schemas()))
    _add_extras(draw, schema)
    return schema


def _copied(value: Any) -> Any:
    """Returns a copy in which no two parts are the same object."""
    return json.loads(json.dumps(value))


def _add_extras(draw: st.DrawFn, schema: Schema) -> None:
    for word in ("properties", "patternProperties", "$defs"):
        for inner in schema.get(word, {}).values():
            _add_extras(draw, inner)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in schema.get(word, []):
            _add_extras(draw, inner)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            _add_extras(draw, schema[word])
    if draw(st.integers(0, 3)) == 0:
        for name, value in draw(st.sampled_from(EXTRAS)).items():
            schema.setdefault(name, _copied(value))
