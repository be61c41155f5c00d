"""Malformed and extreme conversations and tools. Each request gets the right answer or the
documented error, and the server keeps working."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import GENERATING, MESSAGES, body, path
from contract_tests.kit.chat import (
    NAME,
    PATH,
    SWITCH,
    Answer,
    answer_of,
    answers,
    asking,
    both,
    call,
    check_calls,
    named,
    result,
    tool,
)
from contract_tests.kit.server import OwnServer, Server, Start

CHAT = [name for name in GENERATING if "chat" in name]


@pytest.fixture(autouse=True)
def goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server: Server = request.getfixturevalue("server")
        server.wait_until_idle()
        assert server.get("/health").json() == {"status": "ok"}


def refused(server: Server, request: dict[str, Any], *words: str) -> None:
    """Checks for the status 400 and a message that contains all of `words`."""
    for [document] in both(server, request, 400):
        for word in words:
            assert word in document["error"]["message"], document


def right_or_refused(server: Server, request: dict[str, Any]) -> None:
    both(server, request, 200, 400, 501)


def called(server: Server, request: dict[str, Any]) -> list[Answer]:
    """Returns the answers, which are calls with valid arguments and have ended by themselves."""
    found = answers(server, request)
    for answer in found:
        check_calls(answer, request["tools"])
    return found


# ---- messages ----------------------------------------------------------------------------

NO_MESSAGES: list[Any] = [
    None,
    "text",
    {},
    {"role": "user", "content": "a"},
    [None],
    [[]],
    [{}],
    ["text"],
    [{"role": "user"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [5]}],
    [{"role": "unknown", "content": "a"}],
    [{"role": "USER", "content": "a"}],
    [{"role": "", "content": "a"}],
    [{"role": None, "content": "a"}],
    [{"role": "ipython", "content": "a"}],
    [{"role": "assistant"}],
    [{"role": "user", "content": {"type": "text", "text": "a"}}],
    [{"role": "tool", "content": "a", "tool_call_id": {}}],
    [{"role": "assistant", "tool_calls": [{"function": {}}]}],
    [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"input": "a"}}]}],
    [{"role": "assistant", "function_call": {"arguments": "{}"}}],
    [{"role": "assistant", "tool_calls": {"type": "function"}}],
    [*MESSAGES, {"role": "unknown", "content": "a"}],
]


@pytest.mark.parametrize("messages", NO_MESSAGES, ids=lambda messages: str(messages)[:60])
def test_wrong_conversations(messages: Any, server: Server) -> None:
    right_or_refused(server, body(NAME, messages=messages))
    template_s_own = isinstance(messages, list) and any(
        isinstance(each, dict) and each.get("role") in ("unknown", "USER", "ipython")
        for each in messages
    )
    if not template_s_own:
        refused(server, body(NAME, messages=messages), "messages")


SAID: list[Any] = [
    {"role": "user", "content": None},
    {"role": "user", "content": []},
    {"role": "system", "content": ""},
    {"role": "developer", "content": [{"text": "Be short."}]},
    {"role": "user", "content": ["Hello", {"type": "input_text", "text": "there"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "assistant", "content": [{"type": "unheard_of"}], "reasoning_content": None},
    {"role": "assistant", "content": "a", "tool_calls": None, "function_call": None},
    {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "audio": None},
    {"role": "assistant", "tool_calls": [{"type": "web_search"}]},
    {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "a"}}]},
    {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "a"}}]},
    {"role": "assistant", "content": None, "function_call": {"name": "a", "arguments": "{}"}},
    {"role": "function", "name": "a", "content": "1"},
    {"role": "tool", "tool_call_id": 7, "content": "1"},
    {"role": "user", "content": "a", "name": 5, "cache_control": {}, "createdAt": 7, "parts": []},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}], "annotations": []},
]


@pytest.mark.parametrize("message", SAID, ids=lambda message: str(message)[:80])
def test_unusual_messages_of_clients(message: dict[str, Any], server: Server) -> None:
    both(server, body(NAME, messages=[*MESSAGES, message, *MESSAGES]), 200)
    assert server.ask("/apply-template", {"messages": [message, *MESSAGES]})["prompt"]


def test_an_empty_conversation(server: Server) -> None:
    """The template decides what the prompt is."""
    right_or_refused(server, body(NAME, messages=[]))


def test_no_messages_at_all(server: Server) -> None:
    refused(server, {"max_tokens": 4}, "messages")


ORPHANS: list[list[Any]] = [
    [result()],
    [*MESSAGES, result()],
    [*MESSAGES, {"role": "tool", "content": "of a missing call"}],
    [*MESSAGES, {"role": "assistant", "content": "a"}, result()],
    [*MESSAGES, {"role": "assistant", "tool_calls": [call("one")]}, result("other")],
    [*MESSAGES, {"role": "assistant", "tool_calls": [call()]}, result(), result()],
    [*MESSAGES, {"role": "assistant", "tool_calls": [call()]}, *MESSAGES],
    [*MESSAGES, {"role": "assistant", "tool_calls": [call(), call()]}, result()],
    [*MESSAGES, {"role": "assistant", "tool_calls": []}, *MESSAGES],
    [{"role": "assistant", "tool_calls": [call()]}, result()],
    [*MESSAGES, {"role": "assistant", "tool_calls": [call(arguments={})]}, result(content=None)],
    [*MESSAGES, {"role": "assistant", "tool_calls": [call(name="")]}, result("")],
]


@pytest.mark.parametrize("messages", ORPHANS, ids=range(len(ORPHANS)))
def test_calls_and_results_that_do_not_fit(messages: list[Any], server: Server) -> None:
    right_or_refused(server, body(NAME, messages=messages))


@pytest.mark.parametrize("arguments", ["{", "", "[]", "null", "nonsense", '{"a": 1}}', "[" * 9999])
def test_arguments_that_are_no_object(arguments: str, server: Server) -> None:
    answer = {"role": "assistant", "tool_calls": [call(arguments=arguments)]}
    right_or_refused(server, body(NAME, messages=[*MESSAGES, answer, result()]))


def test_a_thousand_messages(own_server: Start) -> None:
    turns = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e f"}]
    request = body(NAME, messages=[*(turns * 500), *MESSAGES])
    for [document] in both(own_server("-c", "4096", "-np", "1"), request, 400):
        assert document["error"]["type"] == "exceed_context_size_error"
        assert document["error"]["n_prompt_tokens"] > 4096
    # Each message becomes one letter, so that they fit.
    initials = "{% for message in messages %}{{ message.role[0] }}{% endfor %}"
    brief = own_server("-c", "4096", "-np", "1", "--chat-template", initials)
    asked = {"messages": request["messages"]}
    assert brief.ask("/apply-template", asked)["prompt"] == "ua" * 500 + "u" * len(MESSAGES)
    for documents in both(brief, request, 200):
        assert answer_of(documents).reason in ("stop", "length")


MEDIA: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    {"type": "image_url", "image_url": {"url": "http://localhost:1/nothing.png"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "input_video", "input_video": {"data": ""}},
    {"type": "video_url", "video_url": {"url": ""}},
]


@pytest.mark.parametrize("part", MEDIA, ids=lambda part: str(part)[:40])
@pytest.mark.parametrize("name", CHAT)
def test_media_for_a_model_that_reads_texts(
    name: str, part: dict[str, Any], server: Server
) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    for stream in (False, True):
        messages = [{"role": "user", "content": content}]
        response = server.post(path(name), body(name, messages=messages, stream=stream))
        message = contract.check(response, 501)["error"]["message"]
        assert "messages[0].content[1]" in message
        assert "input is not supported - hint: if this is unexpected" in message


# ---- an answer that goes on --------------------------------------------------------------


def test_going_on_with_a_call(server: Server) -> None:
    """A call of the model can't be continued; a text after its result can."""
    asked = [*MESSAGES, {"role": "assistant", "content": "I look.", "tool_calls": [call()]}]
    refused(server, body(NAME, messages=asked), "tool calls")
    refused(server, body(NAME, messages=asked, continue_final_message=True), "tool calls")
    answered = [*asked, result()]
    both(server, body(NAME, messages=answered), 200)
    refused(server, body(NAME, messages=answered, continue_final_message=True), "assistant")
    begun = [*answered, {"role": "assistant", "content": "It is"}]
    both(server, body(NAME, messages=begun), 200)
    both(server, body(NAME, messages=begun, continue_final_message=True), 200)
    twice = [*begun, {"role": "assistant", "content": "done"}]
    refused(server, body(NAME, messages=twice), "assistant")
    prompt = server.ask("/apply-template", {"messages": begun})["prompt"]
    assert prompt.endswith("It is")


# ---- tools -------------------------------------------------------------------------------

NO_TOOLS: list[Any] = [
    {},
    "text",
    [None],
    [{}],
    ["switch"],
    [{"type": "function"}],
    [{"type": "function", "function": {}}],
    [{"type": "function", "function": {"name": ""}}],
    [{"type": "function", "function": {"name": 7}}],
    [{"type": "function", "function": {"name": "a" * 1025}}],
    [{"type": "function", "function": {"name": "a", "parameters": "{}"}}],
    [{"type": "function", "function": {"name": "a", "parameters": []}}],
    [{"type": "custom"}],
    [tool(str(n)) for n in range(1025)],
]


@pytest.mark.parametrize("tools", NO_TOOLS, ids=lambda tools: str(tools)[:60])
def test_wrong_tools(tools: Any, server: Server) -> None:
    refused(server, body(NAME, tools=tools), "tools")


@pytest.mark.parametrize(
    "choice",
    [
        *("", "switch", 1, [], {}, {"type": "function"}, {"name": "switch"}),
        {"type": "custom", "custom": {"name": "other"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["switch"]}},
    ],
    ids=str,
)
def test_wrong_tool_choices(choice: Any, server: Server) -> None:
    refused(server, body(NAME, tools=[tool()], tool_choice=choice), "tool_choice")


def test_tools_that_contradict_each_other(server: Server) -> None:
    both(server, asking(tools=[tool(), tool()]), 200)
    both(server, asking(tools=[]), 200)
    both(server, asking(tools=None), 200)
    search = {"type": "web_search"}
    both(server, asking(tools=[search, tool()]), 200)
    both(server, asking(tools=[search], tool_choice="auto"), 200)
    both(server, asking(tools=[search]), 501)
    both(server, asking(tools=[tool(), search], tool_choice=search), 501)
    refused(server, asking(tool_choice=named("other")), "tool_choice", "other")
    allowed = {"mode": "auto", "tools": [named(), named("other")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    refused(server, asking(tool_choice=choice), "tool_choice", "other")
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [search]}}
    both(server, asking(tool_choice=choice), 501)


INVALID: list[dict[str, Any]] = [
    {"type": "nothing"},
    {"type": 5},
    {"type": "object", "properties": []},
    {"type": "object", "properties": {"a": 1}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "nothing"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": "b"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"pattern": "^($"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "http://localhost:1/a"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
]


@pytest.mark.parametrize("parameters", INVALID, ids=lambda parameters: str(parameters)[:70])
def test_schemas_that_no_text_matches(parameters: dict[str, Any], server: Server) -> None:
    refused(server, asking(tools=[tool(parameters=parameters)]))
    right_or_refused(server, body(NAME, tools=[tool(parameters=parameters)]))


ROUND = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
CYCLIC: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
    {**ROUND, "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]},
    {**ROUND, "type": "object", "allOf": [{"$ref": "#/$defs/a"}]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
]


@pytest.mark.parametrize("parameters", CYCLIC, ids=lambda parameters: str(parameters)[:70])
def test_schemas_without_an_end(parameters: dict[str, Any], server: Server) -> None:
    """No finite text matches them: the server rejects them, or the limit of tokens ends the
    text."""
    for documents in both(server, asking(tools=[tool(parameters=parameters)]), 200, 400):
        if "error" not in documents[0]:
            assert answer_of(documents).reason == "length"


def test_a_schema_that_contains_itself(server: Server) -> None:
    """Recursive schemas that allow an end are enforced."""
    tree = {
        "type": "object",
        "properties": {"leaf": {"type": "boolean"}, "more": {"$ref": "#"}},
        "required": ["leaf"],
        "additionalProperties": False,
    }
    for documents in both(server, asking(tools=[tool(parameters=tree)]), 200, 400):
        if "error" not in documents[0] and answer_of(documents).reason == "tool_calls":
            for _, arguments in answer_of(documents).calls:
                jsonschema_rs.validate(tree, json.loads(arguments))


MEGABYTE = 1 << 20
LARGE: list[dict[str, Any]] = [
    {**SWITCH, "description": "a" * MEGABYTE},
    {"type": "object", "properties": {f"p{n}": {"type": "boolean"} for n in range(30_000)}},
    {"type": "object", "properties": {"a": {"enum": [f"v{n:06d}" for n in range(90_000)]}}},
]


@pytest.mark.parametrize("parameters", LARGE, ids=["description", "properties", "enum"])
def test_a_schema_of_a_megabyte(parameters: dict[str, Any], server: Server) -> None:
    for [document] in both(server, asking(tools=[tool(parameters=parameters)]), 400):
        assert document["error"]["message"]


def test_a_schema_that_is_nested_deeply(server: Server) -> None:
    for depth in (30, 300):
        schema: dict[str, Any] = {"type": "boolean"}
        for _ in range(depth):
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        right_or_refused(server, asking(tools=[tool(parameters=schema)]))


def test_many_tools(own_server: Start) -> None:
    server = own_server("-c", "4096", "-np", "1")
    nothing = {"type": "object", "additionalProperties": False}
    # Without descriptions, so that there are many tools but not many tokens.
    functions = [{"name": f"s{n}", "parameters": nothing} for n in range(128)]
    tools = [{"type": "function", "function": function} for function in functions]
    for answer in called(server, asking(tools=tools, tool_choice=named("s77"))):
        assert {name for name, _ in answer.calls} == {"s77"}
    called(server, asking(tools=tools))


@pytest.mark.parametrize(
    "name",
    ['a"b', "a\\b", "a b", "</tool_call>", "\n", "\U0001f999", "{{ 1 }}", "a" * 1024, "null"],
    ids=lambda name: ascii(name)[:20],
)
def test_odd_names_of_tools(name: str, server: Server) -> None:
    right_or_refused(server, asking(tools=[tool(name)]))


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"properties": {}}], ids=str)
def test_tools_without_parameters(parameters: Any, server: Server) -> None:
    right_or_refused(server, asking(tools=[tool(parameters=parameters)]))


@pytest.mark.parametrize("choice", ["none", "auto", "required", None])
def test_a_response_format_with_tools(choice: str | None, server: Server) -> None:
    """The answer has one of the requested forms."""
    answer = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": answer}}
    request = asking(response_format=form, tool_choice=choice)
    for documents in both(server, request, 200, 400):
        if "error" in documents[0]:
            continue
        given = answer_of(documents)
        if given.calls:
            check_calls(given, request["tools"])
        assert choice is None or choice == "auto" or bool(given.calls) == (choice == "required")
        if given.reason == "stop":
            jsonschema_rs.validate(answer, json.loads(given.content))


def test_a_client_that_leaves_in_the_middle_of_a_call(server: Server) -> None:
    endless = {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 5000}},
        "required": ["text"],
    }
    request = asking(tools=[tool(parameters=endless)])
    with server.stream(PATH, {**request, "max_tokens": 1500}) as (_, events):
        for event in events:
            [choice] = event.json["choices"]
            if any(
                each["function"].get("arguments") for each in choice["delta"].get("tool_calls", [])
            ):
                break
        else:
            raise AssertionError("the stream ended without a piece of a call's arguments")
    server.wait_until_idle()
    called(server, asking())


# ---- the template ------------------------------------------------------------------------

TEMPLATE = """
{%- set said = messages[-1].content -%}
{%- if said == 'raise' -%}{{ raise_exception('I do not like ' ~ said) }}
{%- elif said == 'index' -%}{{ messages[99].content.first.second }}
{%- elif said == 'zero' -%}{{ 1 // (said | length - 4) }}
{%- elif said == 'escape' -%}{{ said.__class__.__mro__ }}
{%- elif said == 'change' -%}{{ messages.append(1) }}
{%- elif said == 'huge' -%}{{ said * 10 ** 10 }}
{%- endif -%}
{%- for message in messages -%}[{{ message.role }}]{{ message.content }}{%- endfor -%}
"""


@pytest.fixture(scope="module")
def choosy(module_server: Start, tmp_path_factory: pytest.TempPathFactory) -> OwnServer:
    """A server whose template fails in a way that the last message chooses."""
    file = tmp_path_factory.mktemp("template") / "choosy.jinja"
    file.write_text(TEMPLATE)
    return module_server("--chat-template-file", str(file), "-np", "2")


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("raise", "I do not like raise"),
        ("index", "no element 99"),
        ("zero", "zero"),
        ("escape", "unsafe"),
        ("change", "append"),
        ("huge", ""),
    ],
)
def test_a_template_that_fails(said: str, word: str, choosy: OwnServer) -> None:
    failing = [*MESSAGES, {"role": "user", "content": said}]
    refused(choosy, body(NAME, messages=failing), word)
    message = contract.check(choosy.post("/apply-template", {"messages": failing}), 400)
    assert word in message["error"]["message"]
    assert choosy.get("/health").json() == {"status": "ok"}
    both(choosy, body(NAME), 200)
