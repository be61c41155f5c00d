"""Texts that follow a prepared schema are valid, to two validators that know nothing of
llguidance."""

import copy
import json
import random
import re
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from contract_tests.kit.json_schemas import Schema, schemas, with_extras
from specllama.engine.formats.ecma_regex import PatternError, to_rust
from specllama.engine.formats.json_schema import at_pointer
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.grammars.json_schema import Leniency, more_lenient, prepare
from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import Compiler
from specllama.engine.worker.constraints.constraint import Constraint
from tests.support.covering import examples

pytestmark = pytest.mark.slow

MOST_TOKENS = 300


def guided(compiler: Compiler, schema: str) -> tuple[Constraint, tuple[str, ...]]:
    constraint, relaxed = compiler.guided(GenerationParams(json_schema=schema))
    assert isinstance(constraint, Constraint)
    return constraint, relaxed


def constraint_of(compiler: Compiler, schema: str) -> Constraint:
    return guided(compiler, schema)[0]


def walk(constraint: Constraint, model: Model, seed: int) -> bytes | None:
    """Any text that the constraint allows; None if it doesn't come to an end."""
    choose = random.Random(seed).choice
    text = b""
    for _ in range(MOST_TOKENS):
        if constraint.ended:
            return text
        token = int(choose(constraint.allowed.ids))
        if token in model.eog:
            return text
        text += model.piece(token, special=False)
        if constraint.advance(token):
            return text
    return None


def without(schema: Schema, relaxed: tuple[str, ...]) -> Schema:
    """`schema` without the keywords that were left out."""
    schema = copy.deepcopy(schema)
    for pointer in relaxed:
        assert pointer.startswith("#/")
        parent, _, keyword = pointer.rpartition("/")
        at = at_pointer(schema, parent)
        keyword = keyword.replace("~1", "/").replace("~0", "~")
        if keyword == "oneOf":
            at.setdefault("allOf", []).append({"anyOf": at.pop("oneOf")})
        else:
            del at[keyword]
    return schema


def check(compiler: Compiler, model: Model, schema: Schema, seed: int) -> bool:
    """True if a text came to an end, which then has to be valid."""
    constraint, relaxed = guided(compiler, json.dumps(schema))
    text = walk(constraint, model, seed)
    if text is not None:
        rest = without(schema, relaxed)
        jsonschema_rs.validator_for(rest, validate_formats=True).validate(json.loads(text))
    return text is not None


@examples(60, suppress_health_check=list(HealthCheck))
@given(schema=schemas(), seed=st.integers(0, 100))
def test_every_text_is_valid(compiler: Compiler, model: Model, schema: Schema, seed: int) -> None:
    reason = ""
    try:
        check(compiler, model, schema, seed)
    except GrammarError as error:
        reason = str(error)
    # No other schema of the generator may be rejected.
    assert not reason or "nsatisf" in reason


@examples(40, suppress_health_check=list(HealthCheck))
@given(schema=with_extras(), seed=st.integers(0, 100))
def test_no_keyword_fails_a_schema(
    compiler: Compiler, model: Model, schema: Schema, seed: int
) -> None:
    constraint, reason = None, ""
    try:
        constraint, relaxed = guided(compiler, json.dumps(schema))
    except GrammarError as error:
        reason = str(error)
    # llama-server also rejects schemas that no text matches.
    note(f"{schema} {reason}")
    assert not reason or re.search("nsatisf|no text can match", reason)
    if constraint is None:
        return
    text = walk(constraint, model, seed)
    if text is not None:
        rest = without(schema, relaxed)
        jsonschema_rs.validator_for(
            _valid(_reached(rest)), validate_formats=True, ignore_unknown_formats=True
        ).validate(json.loads(text))


def _reached(schema: Schema) -> Schema:
    """`schema` without definitions that nothing refers to, which may be wrong."""
    definitions = schema.pop("$defs", {})
    kept: Schema = {}
    while missing := {
        name: each
        for name, each in definitions.items()
        if name not in kept
        and f'"#/$defs/{name.replace("~", "~0").replace("/", "~1")}"' in json.dumps([schema, kept])
    }:
        kept |= missing
    return {**schema, "$defs": kept}


def _valid(schema: Any) -> Any:
    """`schema` without annotations, which may be of wrong types."""
    words = ("description", "title", "default", "examples")
    match schema:
        case dict():
            named = {"properties", "patternProperties", "$defs"}
            return {
                key: {name: _valid(each) for name, each in value.items()}
                if key in named
                else value
                if key in ("const", "enum")
                else _valid(value)
                for key, value in schema.items()
                if key not in words
            }
        case list():
            return [_valid(each) for each in schema]
    return schema


VALID: list[Schema] = [
    {"type": "integer", "minimum": 0.5, "maximum": 3.5},
    {"type": "number", "minimum": 0, "maximum": 5, "multipleOf": 0.25},
    {"type": "integer", "minimum": 0, "maximum": 50, "multipleOf": 7},
    {"minimum": 5, "maximum": 7, "maxLength": 2, "maxItems": 1, "maxProperties": 0},
    {"type": "string", "format": "int32", "maxLength": 3},
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^[[a]$"},
    {"type": "string", "pattern": "^\\W\\S\\D.$"},
    {"type": "string", "pattern": r"^[^\s]\u{1F600}\cJ$"},
    {"allOf": [{"pattern": "^[ab]+$"}, {"type": "string", "pattern": "^[bc]+$", "maxLength": 3}]},
    {"type": "string", "minLength": 2.0, "maxLength": 3},
    {"enum": [1, 1.5, "1", True, None, [], {"a": {}}]},
    {"const": "\u0000\u2028\u007f"},
    {"type": "object", "properties": {"ab": {"const": 1}, "ac": {"const": 2}}, "required": ["ab"]}
    | {"patternProperties": {"^x$": {"const": 3}}, "additionalProperties": False},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array"}
    | {"items": [{"const": 1}], "additionalItems": {"type": "boolean"}, "maxItems": 3},
    {"oneOf": [{"const": 1}, {"const": 2}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"type": "integer", "minimum": low, "maximum": low + 4} for low in (0, 5, 10)]},
    {"anyOf": [{"oneOf": [{"const": 1}, {"const": "b"}]}], "oneOf": [{"const": 1}, {"const": 2}]},
    {"$id": "http://x/root", "$defs": {"a": {"$id": "sub", "const": 1}}, "$ref": "sub"},
    {"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "boolean"}}},
    {"x-guidance": {"item_separator": ";", "lenient": True}, "type": "array", "maxItems": 3}
    | {"items": {"type": "boolean"}},
    {"title": "t", "examples": [10**40], "default": 1e-300, "type": "boolean", "then": {}},
]


@pytest.mark.parametrize("schema", VALID, ids=str)
def test_particular_schemas(compiler: Compiler, model: Model, schema: Schema) -> None:
    ended = [check(compiler, model, schema, seed) for seed in range(12)]
    assert any(ended)


@pytest.mark.parametrize(
    ("schema", "relaxed"),
    [
        ({"not": {}}, ["#/not"]),
        ({"properties": {"a": {"if": {"const": 1}, "then": False}}}, ["#/properties/a/if"]),
        ({"items": {"uniqueItems": True}}, ["#/items/uniqueItems"]),
        ({"type": "array", "contains": {}, "minContains": 2}, ["#/contains"]),
        ({"properties": {"a/b~": {"not": {}}}}, ["#/properties/a~1b~0/not"]),
        ({"properties": {}, "unevaluatedProperties": False}, []),
        ({"properties": {}, "unevaluatedProperties": {}}, []),
        ({"unevaluatedProperties": {"const": 1}}, ["#/unevaluatedProperties"]),
        ({"dependentRequired": {"a": ["b"]}}, ["#/dependentRequired"]),
        ({"propertyNames": {"maxLength": 1}}, ["#/propertyNames"]),
        ({"propertyNames": {"type": "string"}, "uniqueItems": False}, []),
        ({"$dynamicRef": "#a"}, ["#/$dynamicRef"]),
        ({"type": "string", "pattern": "a(?=b)"}, ["#/pattern"]),
        ({"type": "string", "pattern": r"\bfoo"}, ["#/pattern"]),
        ({"type": "string", "pattern": r"(a)\1"}, ["#/pattern"]),
        ({"type": "string", "pattern": "("}, ["#/pattern"]),
        ({"type": "string", "format": "regex"}, ["#/format"]),
        ({"type": "string", "format": "int32"}, []),
        ({"type": "integer", "minimum": -(2**63) - 1, "maximum": 2**63}, []),
        ({"type": "number", "maximum": 1.7976931348623157e308}, []),
        ({"type": "integer", "minimum": 2**63}, ["#/minimum"]),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, []),
        ({"const": 12345678901234567890123}, ["#/const"]),
        ({"enum": [1, 12345678901234567890123]}, ["#/enum"]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1e-300}, ["#/exclusiveMaximum"]),
        ({"type": "number", "multipleOf": 0.07}, ["#/multipleOf"]),
        ({"type": "number", "minimum": "1"}, ["#/minimum"]),
        ({"type": "integer", "enum": ["a", "b"]}, ["#/type"]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["#/oneOf"]),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, ["#/oneOf"]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 0}]}, ["#/oneOf"]),
        ({"type": "integer", "oneOf": [{"minimum": 1}, {"maximum": 0}]}, []),
        ({"oneOf": [{"properties": {n: {}}, "required": [n]} for n in "ab"]}, []),
        ({"oneOf": [{"const": i} for i in range(3000)]}, ["#/oneOf"]),
        ({"$schema": "http://localhost:9/x", "type": "null"}, []),
        ({"type": "object", "required": True}, ["#/required"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}, "b": {"not": {}}}}, ["#/$defs/a/not"]),
        (
            {"properties": {"a": {}, "b": {}}, "minProperties": 2},
            ["#/minProperties"],
        ),
        (
            {"patternProperties": {"^a": {}, "b$": {}}, "additionalProperties": False},
            ["#/patternProperties"],
        ),
        (
            {"type": "string", "format": "email", "minLength": 6, "maxLength": 254}
            | {"pattern": r"^\w+([.-]?\w+)*@\w+([.-]?\w+)*(\.\w{2,})+$"},
            ["#/pattern"],
        ),
        (
            {"$ref": "#/$defs/a"}
            | {"$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a", "required": ["b"]}}}}},
            ["#/$defs/a/properties/b/required"],
        ),
        (
            {"$ref": "#/$defs/a"}
            | {
                "$defs": {
                    "a": {
                        "properties": {"c": {"$ref": "#/$defs/a", "required": ["c"]}},
                        "patternProperties": {"^a": {}, "b$": {"type": "null"}},
                        "additionalProperties": False,
                    }
                }
            },
            ["#/$defs/a/patternProperties", "#/$defs/a/properties/c/required"],
        ),
    ],
    ids=str,
)
def test_ignored_keywords_are_reported(
    compiler: Compiler, model: Model, schema: Schema, relaxed: list[str]
) -> None:
    constraint, found = guided(compiler, json.dumps(schema))
    assert list(found) == relaxed
    assert len(constraint.allowed)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, "at #: unrecognized type strin"),
        ({"type": 5}, "at #: type must be a string or an array of strings"),
        ({"type": []}, "type must not be empty"),
        ({"properties": {"a": 5}}, "at #/properties/a: schema must be an object"),
        ({"properties": []}, "properties must be an object"),
        ({"anyOf": []}, "at #/anyOf: must not be empty"),
        ({"items": {"allOf": {}}}, "at #/items/allOf: must be an array of schemas"),
        ({"type": "integer", "minimum": "a"}, "minimum must be a number"),
        ({"type": "string", "minLength": -1}, "minLength must be a non-negative integer"),
        ({"type": "string", "maxLength": True}, "maxLength must be a non-negative integer"),
        ({"pattern": 5}, "pattern must be a string"),
        ({"pattern": "^($"}, "invalid pattern"),
        ({"format": 5}, "format must be a string"),
        ({"enum": []}, "enum must be a non-empty array"),
        ({"additionalProperties": 5}, "additionalProperties must be a boolean or a schema"),
        ({"$ref": 5}, r"\$ref must be a string"),
        ({"$ref": "#/$defs/x"}, r"cannot resolve \$ref #/\$defs/x"),
        ({"$ref": "http://localhost:9/x"}, r"unsupported \$ref http://localhost:9/x"),
        ({"$ref": "file:///etc/passwd"}, "unsupported .*passwd"),
        ({"$ref": "#"}, "no text can match"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no text can match"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "nsatisfiable"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "nsatisfiable"),
    ],
)
def test_mistakes_are_reported(compiler: Compiler, schema: Schema, message: str) -> None:
    with pytest.raises(GrammarError, match=f"Failed to parse JSON schema: .*({message})"):
        constraint_of(compiler, json.dumps(schema))


def chain(length: int, link: Any) -> Schema:
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"const": 1}}}


def child(inner: Schema) -> Schema:
    return {"type": "object", "properties": {"a": inner}, "required": ["a"]}


def test_unsatisfiable_schemas_are_reported_before_unsupported_ones(
    compiler: Compiler,
) -> None:
    tree = {
        "type": "object",
        "properties": {
            "value": {"const": {"id": 0}, "unevaluatedProperties": False},
            "child": {"$ref": "#/$defs/tree", "unevaluatedProperties": False},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    with pytest.raises(GrammarError, match="nsatisfiable"):
        guided(compiler, json.dumps({"$ref": "#/$defs/tree", "$defs": {"tree": tree}}))


@pytest.mark.parametrize("length", [100, 900, 8000])
@pytest.mark.parametrize("link", [lambda x: x, lambda x: {"allOf": [x, x]}, child])
def test_long_chains_of_references_overflow_nothing(
    compiler: Compiler, length: int, link: Any
) -> None:
    reason = ""
    try:
        constraint_of(compiler, json.dumps(chain(length, link)))
    except GrammarError as error:
        reason = str(error)
    assert not reason or re.search("too deep|too complex|too large", reason)


BOMBS: list[str] = [
    json.dumps({"enum": [f"value number {i}" for i in range(45_000)]}),
    json.dumps({"properties": {f"property {i}": {"type": "integer"} for i in range(20_000)}}),
    json.dumps({"anyOf": [{"properties": {f"p{i}": {}}} for i in range(15_000)]}),
    json.dumps({"oneOf": [{"const": i} for i in range(30_000)]}),
    json.dumps({"oneOf": [{"const": i} for i in range(200)]}),
    json.dumps(chain(30, lambda x: {"anyOf": [x, x]})),
    json.dumps({"type": "string", "minLength": 10**9}),
    json.dumps({"type": "array", "minItems": 10**6, "items": {"const": 1}}),
    *(json.dumps({"type": "string", "pattern": "^" + p}) for p in ["(a*)*$", "(.{0,999}){0,999}"]),
    json.dumps({"type": "string", "pattern": "(((((((a{10}){10}){10}){10}){10}){10}){10})"}),
    json.dumps({"type": "string", "pattern": "(x.{50}).*y.{50}z"}),
    json.dumps({"type": "string", "pattern": "(" * 5000 + ")" * 5000}),
    '{"items":' * 5000 + "{}" + "}" * 5000,
    '{"items":' * 99 + "{}" + "}" * 99,
    "[" * 100_000,
    " " * (1 << 21),
    "{",
    "[]",
    "7",
]


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:40])
def test_bombs_are_refused_or_compiled(compiler: Compiler, model: Model, text: str) -> None:
    try:
        constraint = constraint_of(compiler, text)
    except GrammarError:
        return
    for _ in range(5):
        if constraint.ended or constraint.advance(int(constraint.allowed.ids[0])):
            return


def test_no_schema_is_any_object() -> None:
    assert json.loads(prepare("{}").text) == {"type": "object"}


def test_the_same_text_is_compiled_once(compiler: Compiler) -> None:
    text = json.dumps({"const": "compiled once"})
    first, second = constraint_of(compiler, text), constraint_of(compiler, text)
    assert first is not second
    assert np.array_equal(first.allowed.ids, second.allowed.ids)
    assert first.allowed is second.allowed


PATTERNS = st.lists(
    st.sampled_from(
        [
            *(*"ab-0_.é ", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", r"\u0041", r"\x41"),
            *("[a-c]", r"[^a\d]", r"[\W\d]", "[&&]", "[[x]", "(a|b)", "(?:ab)?", "a{1,2}", ".*"),
        ]
    ),
    min_size=1,
    max_size=4,
).map("".join)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(pattern=PATTERNS, seed=st.integers(0, 100))
def test_patterns_mean_the_same(compiler: Compiler, model: Model, pattern: str, seed: int) -> None:
    check(compiler, model, {"type": "string", "pattern": f"^(?:{pattern})$"}, seed)


@pytest.mark.parametrize(
    "pattern",
    [
        *("a(?=b)", "(?i)a", "(?P<n>a)", r"\Aa", r"a\z", r"\k<n>", "[a--b]", "a++", "[", "[]"),
        *("\\", r"\ud800", "a{,2}", "a{x}", r"\Q"),
    ],
)
def test_patterns_that_rust_reads_differently_are_rejected(pattern: str) -> None:
    with pytest.raises(PatternError):
        to_rust(pattern)


# ---- white space --------------------------------------------------------------------------

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_FORMS = {"compact": re.compile(rb"[^ \n\t]*"), "spaced": re.compile(rb"(?:[^ \n\t,:]|[,:] )*")}


@pytest.mark.parametrize("whitespace", _FORMS)
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(schema=schemas(), seed=st.integers(0, 100))
def test_the_white_space_is_the_requested_one(
    compiler: Compiler, model: Model, whitespace: Any, schema: Schema, seed: int
) -> None:
    params = GenerationParams(json_schema=json.dumps(schema), json_whitespace=whitespace)
    try:
        constraint, _ = compiler.guided(params)
    except GrammarError:
        return
    assert isinstance(constraint, Constraint)
    text = walk(constraint, model, seed)
    if text is not None:
        note(repr(text))
        json.loads(text)
        assert _FORMS[whitespace].fullmatch(_STRING.sub(b'""', text))


def test_references_may_be_a_second_fault_of_a_costly_schema() -> None:
    text = '{"pattern": "a", "$ref": "#/$defs/b", "$defs": {"b": {}}}'
    ways = [*more_lenient(text, GrammarError("the constraint is too complex"))]
    pattern = frozenset({"pattern"})
    assert ways[-2:] == [Leniency(pattern), Leniency(pattern, alone=True)]
