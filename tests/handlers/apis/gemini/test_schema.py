"""Schemas in Google's form, as JSON schemas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.handlers.apis.gemini.schema import json_schema


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, {}),
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": "string", "minLength": "2"}, {"type": "string", "minLength": 2}),
        ({"type": "STRING", "max_length": 7}, {"type": "string", "maxLength": 7}),
        ({"type": "TYPE_UNSPECIFIED", "title": "x"}, {"title": "x"}),
        ({"type": None, "description": "x"}, {"description": "x"}),
        ({"type": "NUMBER", "minimum": -1.5}, {"type": "number", "minimum": -1.5}),
        ({"type": "INTEGER", "maximum": "-3"}, {"type": "integer", "maximum": -3}),
        ({"type": "INTEGER", "enum": ["1", "20"]}, {"type": "integer", "enum": [1, 20]}),
        ({"type": "STRING", "enum": ["1"]}, {"type": "string", "enum": ["1"]}),
        ({"type": "ARRAY", "items": {"type": "NULL"}},
         {"type": "array", "items": {"type": "null"}}),
        ({"any_of": [{"type": "STRING"}, {}]}, {"anyOf": [{"type": "string"}, {}]}),
        ({"example": 5, "default": "a_b"}, {"default": "a_b"}),
        ({"ref": "#/defs/a", "defs": {"a": {"type": "STRING"}}},
         {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}),
        ({"additional_properties": False}, {"additionalProperties": False}),
        ({"additionalProperties": {"type": "STRING"}},
         {"additionalProperties": {"type": "string"}}),
    ],
)  # fmt: skip
def test_keywords(given_: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json_schema(given_) == expected


def test_names_of_properties_are_no_keywords() -> None:
    properties = {"any_of": {"type": "STRING"}, "type": {"type": "OBJECT"}, "min_x": {}}
    expected = {"any_of": {"type": "string"}, "type": {"type": "object"}, "min_x": {}}
    made = json_schema({"type": "OBJECT", "properties": properties, "required": ["any_of"]})
    assert made["properties"] == expected
    assert made["required"] == ["any_of"]


@pytest.mark.parametrize("spelled", ["propertyOrdering", "property_ordering"])
def test_the_order_of_properties(spelled: str) -> None:
    schema = {"properties": {"a": {}, "b": {}, "c": {}}, spelled: ["c", "x", 5, "a"]}
    made = json_schema(schema)
    assert list(made) == ["properties"]
    assert list(made["properties"]) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"type": "STRING"}, {"type": ["string", "null"]}),
        ({"type": "STRING", "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{"type": "STRING"}]},
         {"anyOf": [{"anyOf": [{"type": "string"}]}, {"type": "null"}]}),
        ({"ref": "#/defs/a", "defs": {"a": {}}},
         {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {}}}),
        ({"description": "any"}, {"description": "any"}),
    ],
)  # fmt: skip
def test_nullable_fields(given_: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json_schema({**given_, "nullable": True}) == expected
    assert json_schema({**given_, "nullable": False}) == json_schema(given_)


def test_meaningless_keywords_stay() -> None:
    odd = {"type": 5, "items": 7, "properties": [], "anyOf": "x", "enum": 1, "required": {}}
    assert json_schema(odd) == odd
    assert json_schema({"type": "GREEN"}) == {"type": "GREEN"}


def test_a_schema_that_is_nested_too_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(EngineError, match="nested too deep"):
        json_schema(schema)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "any_of", "items", "properties", "nullable", "enum", "min_items"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(["enum", "type"]), ANYTHING))
def test_no_schema_is_too_odd(schema: dict[str, Any]) -> None:
    assert isinstance(json_schema(schema), dict)
