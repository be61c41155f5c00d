"""Responses of a server with a paper engine: it reads exactly the fields that its description
has."""

import json
from typing import Any

import pytest

from tests.support.paper_server import Server

pytestmark = pytest.mark.slow

F = {"type": "function", "name": "f"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
FILE = {"type": "input_file", "file_data": "SGk="}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def refused(server: Server, **body: Any) -> str:
    """Why `body` is refused."""
    answer = server.post("/v1/responses", **body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("part", [
    {"type": "input_audio", "input_audio": 5},
    {"type": "input_audio", "input_audio": {}},
    {"type": "input_image", "image_url": {"url": "data:,"}},
    {"type": "input_image", "image_url": "data:,", "detail": 5},
    {"type": "input_file", "file_data": 5},
    {"type": "input_file", "file_url": 5},
    {**FILE, "filename": 5},
])  # fmt: skip
def test_media_with_a_field_of_the_wrong_type(part: dict[str, Any], server: Server) -> None:
    """They are not parts of another type, of which only a text is checked."""
    field = [*part][-1]
    assert f"input[0].content[0].{field}" in refused(server, input=[user(part)])
    output = {"type": "function_call_output", "call_id": "c1", "output": [part]}
    assert f"input[1].output[0].{field}" in refused(server, input=[CALL, output])


def test_media_with_nulls_and_an_empty_file(server: Server) -> None:
    nulls = {"input_audio": None, "image_url": None, "detail": None, "file_id": None}
    parts = ({**FILE, **nulls}, {**FILE, "file_data": ""}, {"type": None, "text": "a"})
    assert server.post("/v1/responses", input=[user(*parts)]).status_code == 200
    assert server.engine.generations[-1].prompt == ["[user]Hi\n\na[assistant]"]


# ---- tools -----------------------------------------------------------------------------------

LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}
CHATS = [
    {"type": "function", "function": {"name": "g", "strict": False}},
    {"type": "custom", "custom": {"name": "c", "description": "d", "format": LARK}},
]
"""Tools in the form of chats."""
SHOWN = [
    {"type": "function", "name": "g", "description": None, "parameters": None, "strict": False},
    {"type": "custom", "name": "c", "description": "d", "format": LARK},
]


def test_tools_in_the_form_of_chats_are_shown_in_that_of_responses(server: Server) -> None:
    space = {"type": "namespace", "name": "n", "tools": CHATS}
    answer = server.post("/v1/responses", input="a", tools=[*CHATS, space])
    assert answer.status_code == 200, answer.text
    assert answer.json()["tools"] == [
        *SHOWN,
        {"type": "namespace", "name": "n", "description": "", "tools": SHOWN},
    ]


@pytest.mark.parametrize("inner", [
    {"type": "namespace", "name": "m", "tools": [F]},
    {"type": "namespace", "tools": 5},
    {"type": "tool_search", "execution": "client"},
    {"type": "web_search"},
])  # fmt: skip
def test_a_namespace_has_only_offered_tools(inner: dict[str, Any], server: Server) -> None:
    space = {"type": "namespace", "name": "n", "tools": [inner, F]}
    answer = server.post("/v1/responses", input="a", tools=[space])
    assert answer.status_code == 200, answer.text
    [shown] = answer.json()["tools"]
    assert [each["name"] for each in shown["tools"]] == ["f"]


@pytest.mark.parametrize("wrong", [
    {"type": "function", "function": 5},
    {"type": "function", "function": {"name": "g", "parameters": 5}},
    {"type": "custom", "custom": 5},
])  # fmt: skip
def test_tools_in_a_namespace_are_checked(wrong: dict[str, Any], server: Server) -> None:
    space = {"type": "namespace", "name": "n", "tools": [wrong]}
    assert "tools[0].tools[0]" in refused(server, input="a", tools=[space])
    items = [user(), {"type": "additional_tools", "tools": [space]}]
    assert "input[1].tools[0].tools[0]" in refused(server, input=items)


@pytest.mark.parametrize(("choice", "field"), [
    ({"type": "allowed_tools", "allowed_tools": 5}, "allowed_tools"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": 5, "tools": []}}, "allowed_tools.mode"),
    ({"type": "allowed_tools", "allowed_tools": {"tools": [5]}}, "allowed_tools.tools[0]"),
    ({"type": "function", "function": {"name": "f", "namespace": 5}}, "function.namespace"),
])  # fmt: skip
def test_choices_are_checked(choice: Any, field: str, server: Server) -> None:
    said = refused(server, input="a", tools=[F], tool_choice=choice)
    assert f"tool_choice.{field}" in said


def test_choices_in_the_form_of_chats(server: Server) -> None:
    space = {"type": "namespace", "name": "n", "tools": [F]}
    allowed = {"mode": "auto", "tools": [F]}
    for choice in (
        {"type": "function", "function": {"name": "f", "namespace": "n"}},
        {"type": "allowed_tools", "allowed_tools": allowed},
        {"type": "allowed_tools", **allowed, "allowed_tools": None},
    ):
        answer = server.post("/v1/responses", input="a", tools=[space], tool_choice=choice)
        assert answer.status_code == 200, answer.text
        assert answer.json()["tool_choice"] == choice


# ---- forms of the text -----------------------------------------------------------------------


@pytest.mark.parametrize(("form", "schema"), [
    ({"type": "json_object"}, {"type": "object"}),
    ({"type": "json_object", "schema": None}, {"type": "object"}),
    ({"type": "json_object", "schema": {"type": "array"}}, {"type": "array"}),
    ({"type": "json_schema", "schema": {"type": "array"}}, {"type": "array"}),
    ({"type": "json_schema", "schema": {"type": "array"}, "json_schema": 5}, {"type": "array"}),
    ({"type": "json_schema", "schema": {"type": "array"},
      "json_schema": {"schema": {"type": "null"}}}, {"type": "array"}),
])  # fmt: skip
def test_the_schema_of_a_text(form: Any, schema: Any, server: Server) -> None:
    """A `json_schema` inside is the form of chats, which the description doesn't have here."""
    answer = server.post("/v1/responses", input="a", text={"format": form})
    assert answer.status_code == 200, answer.text
    assert json.loads(server.engine.generations[-1].params.json_schema or "") == schema
    assert answer.json()["text"]["format"] == form


def test_the_schema_of_a_text_is_checked(server: Server) -> None:
    form = {"type": "json_object", "schema": 5}
    assert "text.format.schema" in refused(server, input="a", text={"format": form})
