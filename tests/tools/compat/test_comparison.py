"""Changes that break a client, and changes that don't."""

from typing import Any

import pytest

from tools.compat.comparison import breaks

Schema = dict[str, Any]


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}


def _document(
    request: Schema | None = None, answer: Schema | None = None, **operation: Any
) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "operationId": "do",
        "requestBody": {"content": {"application/json": {"schema": request or {}}}},
        "responses": {"200": {"content": {"application/json": {"schema": answer or {}}}}},
        **operation,
    }
    return {"info": {"version": "1"}, "paths": {"/do/{id}": {"post": definition}}}


def _found(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [str(each).removeprefix("POST /do/{id}").strip() for each in breaks(old, new)]


NARROWED: list[tuple[Schema, Schema, str, str]] = [
    (_object(), _object(("a",), a=TEXT), ".a: is new and required", ".a: is gone"),
    (_object(a=TEXT), _object(("a",), a=TEXT), ".a: is required", ""),
    (_object(a=TEXT), _object(), ".a: is gone", ""),
    (_object(a={}), _object(a=WHOLE),
        ".a: null, boolean, number, string, array, object is not accepted", ""),
    (_object(a={"type": "number"}), _object(a=WHOLE), ".a: number is not accepted", ""),
    (_object(a={**TEXT, "nullable": True}), _object(a=TEXT), ".a: null is not accepted", ""),
    ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}, ': "a" is not accepted', ': "c" is not accepted'),
    (TEXT, {**TEXT, "enum": ["a"]}, ': all but "a" is not accepted', ""),
    (WHOLE, {**WHOLE, "x-supported-values": [1]}, ": all but 1 is not accepted", ""),
    (WHOLE, {**WHOLE, "minimum": 0}, ": minimum is 0, was none", ""),
    ({**WHOLE, "maximum": 9}, {**WHOLE, "maximum": 8}, ": maximum is 8, was 9", ""),
    ({**TEXT, "maxLength": 9}, {**TEXT, "maxLength": 8}, ": maxLength is 8, was 9", ""),
    ({"enum": ["long", "s"]}, {**TEXT, "maxLength": 3}, ": maxLength is 3, was none",
        ': all but "long", "s" is not accepted'),
    (TEXT, {**TEXT, "pattern": "^a"}, ": has to match ^a", ""),
    (_object(), {**_object(), "additionalProperties": False}, ": accepts no other fields", ""),
    ({"anyOf": [TEXT, WHOLE]}, TEXT, ": integer is not accepted", ""),
    ({"oneOf": [TEXT, {**WHOLE, "maximum": 9}]}, {"anyOf": [TEXT, {**WHOLE, "maximum": 8}]},
        ": maximum is 8, was 9", ""),
    ({"type": "array", "items": TEXT}, {"type": "array", "items": {**TEXT, "maxLength": 1}},
        "[]: maxLength is 1, was none", ""),
    ({**WHOLE, "default": 1}, {**WHOLE, "x-default": 2},
        ": the default is 2 instead of 1", ": the default is 1 instead of 2"),
]  # fmt: skip
"""The old schema, the new one, the expected break, and the expected break of the way back."""


@pytest.mark.parametrize(("old", "new", "expected", "way_back"), NARROWED)
def test_a_request_must_not_be_narrowed(
    old: Schema, new: Schema, expected: str, way_back: str
) -> None:
    assert _found(_document(old), _document(new)) == [f"request{expected}"]
    assert _found(_document(new), _document(old)) == ([f"request{way_back}"] if way_back else [])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (_object(("a",), a=TEXT), _object(a=TEXT), ["200.a: may be missing"]),
        (_object(("a",), a=TEXT), _object(), ["200.a: is gone"]),
        (_object(a=WHOLE), _object(a={"type": "number"}), ["200.a: may be number"]),
        (_object(a=TEXT), _object(a={**TEXT, "nullable": True}), ["200.a: may be null"]),
        (
            {"type": "array", "items": TEXT},
            {"type": "array", "items": {"anyOf": [TEXT, WHOLE]}},
            ["200[]: may be integer"],
        ),
    ],
)
def test_an_answer_must_not_be_widened(old: Schema, new: Schema, expected: list[str]) -> None:
    assert _found(_document(answer=old), _document(answer=new)) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_object(a=TEXT), _object(a=TEXT, b=WHOLE)),
        ({**TEXT, "enum": ["a"]}, {**TEXT, "enum": ["a", "b"]}),
        ({**WHOLE, "default": 1}, {**WHOLE, "x-default": 1}),
        ({**WHOLE, "minimum": 0}, {**WHOLE, "x-clamped": {"minimum": 0}}),
        ({"allOf": [_object(a=TEXT), _object(b=TEXT)]}, _object(a=TEXT, b=TEXT)),
        (
            {**TEXT, "nullable": True, "x-supported-values": []},
            {"x-supported-values": [], "allOf": [{**TEXT, "nullable": True}]},
        ),
        ({"anyOf": [_object(a=TEXT)]}, {"oneOf": [{"title": "A", **_object(a=TEXT)}]}),
        (_object(a={"enum": ["x", "y"]}), _object(a={"anyOf": [{"enum": ["y"]}, {"enum": ["x"]}]})),
        ({"enum": ["a", "bc"]}, {**TEXT, "minLength": 1, "maxLength": 64}),
    ],
)
def test_these_are_no_breaks_of_a_request(old: Schema, new: Schema) -> None:
    assert not _found(_document(old), _document(new))


def test_the_items_of_an_empty_list_are_no_break_of_an_answer() -> None:
    old = {"type": "array", "maxItems": 0, "items": TEXT}
    new = {"type": "array", "maxItems": 0, "items": {**TEXT, "nullable": True}}
    assert not _found(_document(answer=old), _document(answer=new))


def test_names_do_not_count() -> None:
    inline = _document(_object(("a",), a={"type": "array", "items": _object(b=TEXT)}))
    named = _document({"$ref": "#/components/schemas/Asked"}, operationId="another")
    named["components"] = {
        "schemas": {
            "Asked": _object(
                ("a",), a={"type": "array", "items": {"$ref": "#/components/schemas/Item"}}
            ),
            "Item": {"title": "Item", **_object(b={"allOf": [{"$ref": "#/components/schemas/T"}]})},
            "T": TEXT,
        }
    }
    named["paths"]["/do/{name}"] = named["paths"].pop("/do/{id}")
    assert not _found(inline, named)
    assert not _found(named, inline)


def test_a_schema_may_refer_to_itself() -> None:
    document = _document({"$ref": "#/components/schemas/Node"})
    document["components"] = {
        "schemas": {"Node": _object(next={"$ref": "#/components/schemas/Node"}, a=TEXT)}
    }
    assert not _found(document, document)


JSON = {"application/json": {"schema": TEXT}}
EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"responses": {"200": {}, "404": {}}}, {"responses": {"200": {}}}, ["404: is gone"]),
        (
            {"responses": {"200": {"content": {**JSON, EVENTS: {}}}}},
            {"responses": {"200": {"content": JSON}}},
            ["200: text/event-stream is gone"],
        ),
        (
            {"responses": {"200": {"content": {EVENTS: {"x-event-end": "[DONE]"}}}}},
            {"responses": {"200": {"content": {EVENTS: {}}}}},
            ["200: the stream ends with no sign"],
        ),
        (
            {"responses": {"200": {"content": {EVENTS: {"x-event-data-schema": TEXT}}}}},
            {"responses": {"200": {"content": {EVENTS: {"x-event-data-schema": {}}}}}},
            ["200 event: may be null, boolean, integer, number, array, object"],
        ),
        (
            {"responses": {"200": {"headers": {"X-A": {}, "x-b": {}}}}},
            {"responses": {"200": {"headers": {"X-B": {}}}}},
            ["200.X-A: is gone"],
        ),
        ({"requestBody": {"content": JSON}}, {"requestBody": {}}, [
            "request: application/json is not accepted"]),
        ({"requestBody": {}}, {"requestBody": {"required": True}}, [
            "request: has to have a body"]),
        ({"security": []}, {"security": [{"key": []}]}, [": needs an API key"]),
        ({}, {"x-option": "--metrics"}, [": needs a server with the option (x-option)"]),
        ({}, {"x-max-body-size": 1}, [": has a bound for its body (x-max-body-size)"]),
        ({"x-max-body-size": 1}, {"x-max-body-size": 2}, []),
        ({"x-refused": True}, {"x-option": "--tools", "requestBody": {"required": True}}, []),
        ({"responses": {"200": {}, "501": {}}}, {
            "responses": {"200": {}, "501": {}}, "x-option": "--metrics"}, []),
    ],
)  # fmt: skip
def test_operations(old: dict[str, Any], new: dict[str, Any], expected: list[str]) -> None:
    assert _found(_document(**old), _document(**new)) == expected


def _parameter(schema: Schema, **rest: Any) -> list[dict[str, Any]]:
    return [{"in": "query", "name": "a", "schema": schema, **rest}]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (_parameter(TEXT), [], ["query.a: is gone"]),
        ([], _parameter(TEXT), []),
        ([], _parameter(TEXT, required=True), ["query.a: is new and required"]),
        (_parameter(TEXT), _parameter(TEXT, required=True), ["query.a: is required"]),
        (_parameter(TEXT), _parameter({"enum": ["b"]}), ['query.a: all but "b" is not accepted']),
    ],
)
def test_parameters(old: list[Any], new: list[Any], expected: list[str]) -> None:
    assert _found(_document(parameters=old), _document(parameters=new)) == expected
    shared = _document()
    shared["paths"]["/do/{id}"]["parameters"] = old
    assert _found(shared, _document(parameters=new)) == expected


def test_an_operation_that_is_gone() -> None:
    new = _document()
    new["paths"] = {"/other": new["paths"]["/do/{id}"]}
    assert _found(_document(), new) == [": is gone"]
