"""One true sentence about an invalid instance, in bounded time."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.formats.schema_check import compile_schema, to_2020_12
from specllama.engine.formats.schema_errors import sentence

pytestmark = pytest.mark.slow

PART = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", "text"],
            "properties": {
                "type": {"type": "string", "enum": ["text"]},
                "text": {"type": "string"},
            },
        },
        {
            "type": "object",
            "required": ["type", "url"],
            "properties": {
                "type": {"type": "string", "enum": ["image"]},
                "url": {"type": "string"},
            },
        },
    ]
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "prompt": {
            "anyOf": [
                {"type": "string", "maxLength": 10},
                {
                    "type": "array",
                    "maxItems": 2000,
                    "items": {
                        "anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}],
                    },
                },
                {
                    "type": "array",
                    "maxItems": 100,
                    "items": {"type": "array", "items": {"type": "integer"}},
                },
            ]
        },
        "parts": {"type": "array", "items": PART},
        "n": {"type": "integer", "minimum": 1, "maximum": 9, "nullable": True},
        "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        "mode": {"type": "string", "enum": ["a", "b"], "nullable": True},
        "pair": {"type": "array", "minItems": 2, "items": {}},
        "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 1},
        "map": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}
VALIDATOR = compile_schema(SCHEMA)


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        ([], "[] is not an object"),
        ({}, '"prompt" is a required property'),
        ({"prompt": 1}, "prompt: 1 is not a string or an array"),
        ({"prompt": None}, "prompt: null is not a string or an array"),
        ({"prompt": "a" * 11}, f'prompt: "{"a" * 11}" is longer than 10 characters'),
        ({"prompt": ["a", -1]}, "prompt[1]: -1 is less than the minimum of 0"),
        ({"prompt": [[1], [1, "a"]]}, 'prompt[1][1]: "a" is not an integer'),
        ({"prompt": "", "n": 10}, "n: 10 is greater than the maximum of 9"),
        ({"prompt": "", "n": 1.5}, "n: 1.5 is not an integer or null"),
        ({"prompt": "", "ratio": 0}, "ratio: 0 is not greater than 0"),
        ({"prompt": "", "mode": "c"}, 'mode: "c" is not one of "a", "b", null'),
        ({"prompt": "", "pair": [1]}, "pair: it has 1 item, but needs at least 2"),
        ({"prompt": "", "name": "A"}, 'name: "A" does not match ^[a-z]+$'),
        ({"prompt": "", "name": ""}, 'name: "" '),
        ({"prompt": "", "map": {"a b": "x"}}, 'map["a b"]: "x" is not a number'),
        ({"prompt": "", "parts": ["x"]}, 'parts[0]: "x" is not an object'),
        (
            {"prompt": "", "parts": [{"type": "video"}]},
            'parts[0].type: "video" is not one of "text", "image"',
        ),
        ({"prompt": "", "parts": [{"type": "image"}]}, 'parts[0]: "url" is a required property'),
        (
            {"prompt": "", "parts": [{"type": "text", "text": 1}]},
            "parts[0].text: 1 is not a string",
        ),
        ({"prompt": "", "n": [0] * 1000}, "n: [0,0,0,"),
        # Large ones: the position is right, and the answer doesn't take minutes.
        ({"prompt": [1] * 1000 + [-1]}, "prompt[1000]: -1 is less than"),
        ({"prompt": [None] * 100_000}, "prompt[0]: null is not a string or an integer"),
        ({"prompt": [1] * 100_000}, "prompt: 100000 items are too many"),
        ({"prompt": [1] * 100_000, "n": "x"}, 'n: "x" is not an integer or null'),
        ({"prompt": [[1] * 100_000 + ["a"]]}, 'prompt[0][100000]: "a" is not an integer'),
        ({"prompt": "", "map": {f"k{i}": 1 for i in range(20_000)} | {"z": "x"}}, 'map.z: "x"'),
        ({"prompt": "", "n": "x" * 1_000_000}, 'n: "xxx'),
    ],
)
def test_sentences(instance: Any, expected: str) -> None:
    assert not VALIDATOR.is_valid(instance)
    message = sentence(VALIDATOR, instance)
    assert message.startswith(expected)
    assert len(message) < 250


@pytest.mark.parametrize("depth", [10, 70, 300, 1000])
@pytest.mark.parametrize("is_object", [True, False])
def test_a_wrong_value_may_be_nested_deeply(depth: int, is_object: bool) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if is_object else [value]
    instance = {"prompt": "", "n": value, "map": {"a": 1}}
    assert not VALIDATOR.is_valid(instance)
    message = sentence(VALIDATOR, instance)
    assert message.startswith("n: ")
    assert len(message) < 250


def test_a_parameter_has_a_name() -> None:
    validator = compile_schema({"type": "integer", "maximum": 3})
    assert sentence(validator, 4, "n") == "n: 4 is greater than the maximum of 3"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=40)
        | st.dictionaries(st.sampled_from([*SCHEMA["properties"], "type", "text"]), children)
    ),
    max_leaves=60,
)


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(SCHEMA["properties"], json_values)))
def test_every_invalid_instance_gets_a_short_sentence(instance: dict[str, Any]) -> None:
    valid = VALIDATOR.is_valid(instance)
    if not valid:
        message = sentence(VALIDATOR, instance)
        assert message
        assert "\n" not in message
        assert len(message) < 1000


def test_conversion_keeps_constraints_and_drops_the_rest() -> None:
    schema = {
        "type": "object",
        "description": "text",
        "components": {"schemas": {}},
        "x-own": 1,
        "properties": {
            "description": {"type": "string", "nullable": True, "enum": ["a"], "default": "a"},
            "n": {
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": False,
                "maximum": 2,
                "exclusiveMaximum": True,
            },
        },
        "additionalProperties": {"type": "string", "example": "x"},
    }
    assert to_2020_12(schema) == {
        "type": "object",
        "properties": {
            "description": {"type": ["string", "null"], "enum": ["a", None]},
            "n": {"type": "number", "minimum": 0, "exclusiveMaximum": 2},
        },
        "additionalProperties": {"type": "string"},
    }
    json.dumps(to_2020_12(schema))
