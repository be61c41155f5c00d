"""Small grammars and schemas that would take for ever, or fill the memory."""

import json
from typing import Any

from specllama.engine.params import GenerationParams

NAMES = [f"p{i}" for i in range(64)]


def _itself(name: str) -> dict[str, Any]:
    properties = {each: {"$ref": f"#/$defs/{name}"} for each in NAMES}
    return {"type": "object", "required": NAMES, "properties": properties}


def _chain(length: int, link: Any) -> dict[str, Any]:
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"const": 1}}}


def _fork(inner: dict[str, Any]) -> dict[str, Any]:
    a = {"allOf": [inner, {"title": "1"}]}
    b = {"allOf": [inner, {"properties": {"q": True}}]}
    return {"type": "object", "properties": {"a": a, "b": b}, "required": ["a", "b"]}


ENDLESS = {"type": "integer", "allOf": [{"multipleOf": p} for p in (9973, 9967, 9949, 9941)]}
"""A schema that takes llguidance hours; without the costly keyword it allows any integer."""

_BIG = {f"k{i}": ["x"] * 10 for i in range(4000)}
SCHEMAS: dict[str, dict[str, Any]] = {
    "branches of oneOf that are made of themselves": {
        "$defs": {"a": _itself("a"), "b": _itself("b")},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    },
    "10,000 optional properties": {
        "properties": {f"p{i}": {"type": "null"} for i in range(10_000)}
    },
    "a product of numbers": ENDLESS,
    "a product of objects": {
        "allOf": [
            {"anyOf": [{"properties": {f"a{i}_{j}": {"const": j}}} for j in range(8)]}
            for i in range(8)
        ]
    },
    "a product of patterns": {
        "type": "string",
        "allOf": [{"pattern": f"a.{{{i}}}b.*c{i}"} for i in range(5, 60)],
    },
    "references that fork": _chain(18, _fork),
    "references in alternatives": _chain(30, lambda x: {"anyOf": [x, x]}),
    "a large constant in every branch": {
        "$defs": {"c": {"const": _BIG}},
        "oneOf": [{"allOf": [{"$ref": "#/$defs/c"}, {"title": str(i)}]} for i in range(3000)],
    },
    "patterns of names": {
        "patternProperties": {
            f"^(a|b)*a(a|b){{{i % 12}}}x{i}$": {"type": "string"} for i in range(300)
        }
    },
    "45,000 values": {"enum": [f"value number {i}" for i in range(45_000)]},
    "values of 100,000 characters": {"enum": ["x" * 100_000 + str(i) for i in range(9)]},
    "repetition in repetition": {"type": "string", "pattern": "(((((a{10}){10}){10}){10}){10})"},
    "arrays in arrays": {
        "type": "array",
        "minItems": 1000,
        "items": {"type": "array", "minItems": 1000, "items": {"maxItems": 1000, "items": {}}},
    },
}
GRAMMARS = {
    "nests of {1000}": 'root ::= "x" ((("a"{1000}){1000}){1000})',
    "nests with recursion": 'root ::= s root?\ns ::= ((((("a"{999}){999}){999}){999}){999})',
    "many long repetitions": "root ::= s root?\ns ::= "
    + " ".join(f"[a-z]{{0,{1000 + i}}}" for i in range(900)),
    "4,000 words": "root ::= s root?\ns ::= " + " | ".join(f'"word {i}"' for i in range(4000)),
    "an ambiguous rule": "root ::= s\ns ::= s s s | .?",
}
SOURCES = {
    **{name: GenerationParams(json_schema=json.dumps(each)) for name, each in SCHEMAS.items()},
    **{name: GenerationParams(grammar=each) for name, each in GRAMMARS.items()},
}
