"""Conversion of Google's requests to the engine's."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.contract import find
from contract_tests.kit.lint import errors
from specllama.engine.chat.request import ThinkingBudget
from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.gemini.request import (
    ContentRequest,
    content_params,
    read_content,
    read_content_input,
)
from specllama.handlers.running.media import MediaInput
from tests.support.options_support import model_options

CONTENTS = [{"role": "user", "parts": [{"text": "Hello"}]}]
USER = {"role": "user", "content": "Hello"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "OBJECT"}}
CALL = {"functionCall": {"name": "f", "args": {"a": [1, "ä"]}}}
CALLED = {"name": "f", "arguments": '{"a": [1, "ä"]}'}
PATH = "/v1beta/models/m:generateContent"


def asked(**body: Any) -> ContentRequest:
    made: Any = {"contents": CONTENTS, **body}
    content = find("POST", PATH).definition["requestBody"]["content"]
    assert not list(errors(content["application/json"]["schema"], made))
    return read_content(made, model_options())


def request(**body: Any) -> Any:
    return asked(**body).what


def turns(*contents: tuple[str | None, list[Any]]) -> list[dict[str, Any]]:
    given_ = [{"role": role, "parts": parts} for role, parts in contents]
    found: list[dict[str, Any]] = request(contents=given_).messages
    return found


def params(**config: Any) -> GenerationParams:
    made: Any = config
    found, _ = content_params(made, GenerationParams())
    return found


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"text": each} for each in texts]


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} for each in texts]


def returned(value: Any, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": "f", "response": value, **fields}}


def refused(type_: str, **body: Any) -> str:
    with pytest.raises(EngineError) as caught:
        asked(**body)
    assert caught.value.info.type == type_
    return caught.value.info.message


# ---- contents ----------------------------------------------------------------------------------


def test_texts() -> None:
    assert turns(("user", text("Hello"))) == [USER]
    assert turns((None, text("Hello"))) == [USER]
    assert turns(("user", text("a", "b"))) == [{"role": "user", "content": parts("a", "b")}]
    assert turns(("user", [])) == [{"role": "user", "content": ""}]


def test_system() -> None:
    said = {"role": "system", "content": "Be short."}
    assert request(systemInstruction={"parts": text("Be short.")}).messages == [said, USER]
    with_role = {"role": "user", "parts": text("Be short.", "")}
    assert request(systemInstruction=with_role).messages == [said, USER]
    several = request(systemInstruction={"parts": text("a", "b")}).messages[0]
    assert several["content"] == parts("a", "b")
    empty: list[Any] = [None, {"parts": []}, {"parts": text("")}]
    for nothing in empty:
        assert request(systemInstruction=nothing).messages == [USER]


def test_turns_of_one_role_become_one() -> None:
    said = turns(
        ("user", text("a")), ("user", text("b")), ("model", text("c")), ("model", text("d"))
    )
    assert said == [
        {"role": "user", "content": parts("a", "b")},
        {"role": "assistant", "content": "cd"},
    ]
    other = turns(("user", text("a")), ("system", text("s")), ("user", text("b")))
    assert [(each["role"], each["content"]) for each in other] == [
        ("user", "a"),
        ("system", "s"),
        ("user", "b"),
    ]


def test_thoughts_and_calls_of_the_model() -> None:
    thought = {"text": "hm", "thought": True, "thoughtSignature": "__4="}
    [_, answer] = turns(("user", text("a")), ("model", [thought, *text("b"), CALL]))
    assert answer == {
        "role": "assistant",
        "content": "b",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_0", "type": "function", "function": CALLED}],
    }


def test_results_belong_to_their_calls() -> None:
    other = {"functionCall": {"name": "g", "id": "own"}}
    *_, first, second, third, said = turns(
        ("model", [CALL, CALL, other]),
        ("function", [returned({"output": "1"}), returned({}, name="g", id="own")]),
        ("user", [*text("And?"), returned({"output": "2"})]),
    )
    assert [each["tool_call_id"] for each in (first, second, third)] == ["call_0", "own", "call_1"]
    assert [each["name"] for each in (first, second, third)] == ["f", "g", "f"]
    assert [each["content"] for each in (first, second, third)] == ["1", "{}", "2"]
    assert said == {"role": "user", "content": "And?"}


def test_a_result_that_comes_first_by_its_id() -> None:
    ids = [{"functionCall": {"name": "f", "id": each}} for each in ("x", "y")]
    *_, first, second = turns(
        ("model", ids), ("user", [returned({}, id="y")]), ("user", [returned({})])
    )
    assert [each["tool_call_id"] for each in (first, second)] == ["y", "x"]


def test_a_result_whose_call_was_cut_off_stays() -> None:
    [result] = turns(("user", [returned({"output": "1"})]))
    assert (result["role"], result["tool_call_id"], result["name"]) == ("tool", "", "f")


@pytest.mark.parametrize(
    ("response", "read"),
    [
        ({"output": "warm"}, "warm"),
        ({"result": "warm"}, "warm"),
        ({"output": {"t": 20}}, '{"t": 20}'),
        ({"result": [1, "ä"]}, '[1, "ä"]'),
        ({"t": 20}, '{"t": 20}'),
        ({"error": "no"}, '{"error": "no"}'),
        ({"output": "a", "error": "b"}, '{"output": "a", "error": "b"}'),
        ({"output": ""}, ""),
        (None, "{}"),
    ],
)
def test_results_of_functions(response: Any, read: str) -> None:
    [result] = turns(("user", [returned(response)]))
    assert result["content"] == read


def test_code_is_text() -> None:
    code = {"executableCode": {"code": "1 + 1", "language": "PYTHON"}}
    result = {"codeExecutionResult": {"output": "2", "outcome": "OUTCOME_OK"}}
    [answer] = turns(("model", [code, result]))
    assert answer["content"] == "1 + 12"


def test_parts_of_other_kinds_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    [said] = turns(("user", [{"toolCall": {"id": "1"}}, {}, *text("a")]))
    assert said["content"] == "a"
    assert "contents[0].parts[0]: a part of toolCall is left out" in caplog.text
    assert "contents[0].parts[1]: a part of nothing is left out" in caplog.text


# ---- media -------------------------------------------------------------------------------------


def medium(part: dict[str, Any]) -> MediaInput:
    [message] = turns(("user", [part]))
    [found] = message["content"]
    media: MediaInput = found["media"]
    return media


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_media(kind: str) -> None:
    data = medium({"inlineData": {"mimeType": f"{kind}/any", "data": "AAAA"}})
    assert (data.given, data.kind) == ("AAAA", kind)
    assert data.where == "contents[0].parts[0].inlineData"
    file = medium({"fileData": {"mimeType": f"{kind.upper()}/any", "fileUri": "https://x/y"}})
    assert (file.given, file.kind) == ("https://x/y", kind)


def test_documents() -> None:
    [said] = turns(
        ("user", [{"inlineData": {"mimeType": "text/plain", "data": "aGk", "displayName": "n"}}])
    )
    assert said["content"] == "n\nhi"
    pdf = medium({"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0x"}})
    assert (pdf.given, pdf.kind) == (b"%PDF-1", "document")
    file = medium({"fileData": {"fileUri": "https://x/y.pdf"}})
    assert (file.given, file.kind) == ("https://x/y.pdf", "document")


def test_files_of_google() -> None:
    file = {"fileData": {"mimeType": "image/png", "fileUri": "files/abc"}}
    said = refused("not_supported_error", contents=[{"parts": [file]}])
    assert said == "contents[0].parts[0].fileData: this server keeps no files; send the data itself"
    wrong = {"inlineData": {"mimeType": "application/zip", "data": "UEsDBBQAAAAIAP8="}}
    refused("not_supported_error", contents=[{"parts": [wrong]}])
    wrong["inlineData"]["data"] = "?"
    refused("invalid_request_error", contents=[{"parts": [wrong]}])


def test_generated_media_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    [answer] = turns(("model", [image, *text("a")]))
    assert answer["content"] == "a"
    assert "contents[0].parts[0]: media that the model has generated" in caplog.text


def test_media_in_results() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    kind, data = "application/zip", "UEsDBBQA/w"
    archive = {"inlineData": {"mimeType": kind, "data": data, "displayName": "z"}}
    file = {"fileData": {"mimeType": "video/mp4", "fileUri": "files/1"}}
    [result] = turns(("user", [returned({}, parts=[image, archive, file])]))
    medium_, *lines = result["content"]
    assert medium_["media"].kind == "image"
    assert lines == parts("[document] z", "[video]")
    [result] = turns(("user", [returned({"output": "see"}, parts=[image])]))
    assert result["content"][0] == {"type": "text", "text": "see"}
    refused("invalid_request_error", contents=[{"parts": [returned({}, parts=[{}])]}])


# ---- tools -------------------------------------------------------------------------------------


def test_tools() -> None:
    schema = {"type": "object", "properties": {}}
    tools = [
        {"functionDeclarations": [FUNCTION, {"name": "g"}]},
        {"functionDeclarations": [{"name": "h", "parametersJsonSchema": schema, "parameters": {}}]},
    ]
    found = request(tools=tools)
    assert [each["function"] for each in found.tools] == [
        {"name": "f", "description": "d", "parameters": {"type": "object"}},
        {"name": "g", "description": "", "parameters": schema},
        {"name": "h", "description": "", "parameters": schema},
    ]
    assert (found.tool_choice, found.parallel_tool_calls) == ("auto", None)


def test_tools_that_google_runs_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"googleSearch": {}, "functionDeclarations": [FUNCTION]}, {"codeExecution": None}]
    assert len(request(tools=tools).tools) == 1
    assert "this server has no googleSearch; the tool is left out" in caplog.text
    any_: Any = {"functionCallingConfig": {"mode": "ANY"}}
    said = refused("not_supported_error", tools=[{"urlContext": {}}], toolConfig=any_)
    assert "urlContext" in said


@pytest.mark.parametrize(
    ("config", "how", "names"),
    [
        ({}, "auto", ["f", "g"]),
        ({"mode": None}, "auto", ["f", "g"]),
        ({"mode": "MODE_UNSPECIFIED"}, "auto", ["f", "g"]),
        ({"mode": "AUTO", "allowedFunctionNames": ["f"]}, "auto", ["f", "g"]),
        ({"mode": "any"}, "required", ["f", "g"]),
        ({"mode": "ANY", "allowedFunctionNames": ["g"]}, "required", ["g"]),
        ({"mode": "VALIDATED"}, "auto", ["f", "g"]),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["g"]}, "auto", ["g"]),
        ({"mode": "NONE"}, "none", ["f", "g"]),
    ],
)
def test_choices(config: Any, how: str, names: list[str]) -> None:
    tools = [{"functionDeclarations": [FUNCTION, {"name": "g"}]}]
    found = request(tools=tools, toolConfig={"functionCallingConfig": config})
    assert found.tool_choice == how
    assert [each["function"]["name"] for each in found.tools] == names


def test_wrong_choices() -> None:
    tools = [{"functionDeclarations": [FUNCTION]}]
    wrong = {"functionCallingConfig": {"mode": "SOMETIMES"}}
    assert "'SOMETIMES'" in refused("invalid_request_error", tools=tools, toolConfig=wrong)
    unknown = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}
    assert "'x'" in refused("invalid_request_error", tools=tools, toolConfig=unknown)
    none = {"functionCallingConfig": None}
    assert request(tools=tools, toolConfig=none).tool_choice == "auto"


# ---- parameters --------------------------------------------------------------------------------


def test_parameters() -> None:
    found = params(
        temperature=0.5,
        topP=0.75,
        topK=5.0,
        maxOutputTokens=7,
        stopSequences=["a", ""],
        seed=3,
        presencePenalty=1,
        frequencyPenalty=-1,
    )
    assert (found.temperature, found.top_p, found.top_k, found.n_predict) == (0.5, 0.75, 5, 7)
    assert (found.stop, found.seed) == (["a"], 3)
    assert (found.presence_penalty, found.frequency_penalty) == (1.0, -1.0)
    assert params() == params(temperature=None) == GenerationParams()


def test_candidates() -> None:
    assert asked().n == 1
    assert asked(generationConfig={"candidateCount": 3}).n == 3


def test_streams() -> None:
    body: Any = {"contents": CONTENTS}
    assert not asked().params.stream
    streamed = read_content(body, model_options(), stream=True)
    assert streamed.params.stream
    assert streamed.ping
    assert streamed.ping.data == b"\n"


def test_forms_of_the_answer() -> None:
    schema = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}
    as_json = {"type": "object", "properties": {"a": {"type": "string"}}}
    for config in (
        {"responseMimeType": "application/json", "responseSchema": schema},
        {"responseSchema": schema},
        {"responseJsonSchema": as_json, "responseSchema": {"type": "STRING"}},
    ):
        assert json.loads(params(**config).json_schema or "") == as_json
    any_object = params(responseMimeType="application/json").json_schema
    assert json.loads(any_object or "") == {"type": "object"}
    assert params(responseMimeType="text/plain").json_schema is None
    assert asked(generationConfig={"responseMimeType": None}).params.json_schema is None


def test_one_of_several_texts() -> None:
    schema = {"type": "STRING", "enum": ["a", 'b"']}
    found = asked(generationConfig={"responseMimeType": "text/x.enum", "responseSchema": schema})
    assert found.is_enum
    assert json.loads(found.params.json_schema or "") == {"type": "string", "enum": ["a", 'b"']}
    assert not asked(generationConfig={"responseSchema": schema}).is_enum
    without: list[Any] = [None, {}, {"enum": []}, {"enum": [5]}, {"enum": "a"}]
    for wrong in without:
        config = {"responseMimeType": "text/x.enum", "responseJsonSchema": wrong}
        assert "text/x.enum" in refused("invalid_request_error", generationConfig=config)
    other = {"responseMimeType": "text/html"}
    assert "'text/html'" in refused("invalid_request_error", generationConfig=other)


def test_probabilities() -> None:
    for config, n_probs, n_top in (
        ({"responseLogprobs": True}, 1, 0),
        ({"responseLogprobs": True, "logprobs": 3}, 3, 3),
    ):
        found = asked(generationConfig=config)
        assert found.params.n_probs == n_probs
        assert found.probabilities
        assert found.probabilities.n_top == n_top
    assert asked(generationConfig={"logprobs": 3}).probabilities is None


def test_kinds_of_answers() -> None:
    asked(generationConfig={"responseModalities": ["IMAGE", "Text"]})
    asked(generationConfig={"responseModalities": []})
    said = refused("not_supported_error", generationConfig={"responseModalities": ["AUDIO"]})
    assert "responseModalities" in said


@pytest.mark.parametrize(
    ("thinking", "enabled", "effort", "budget"),
    [
        ({}, None, None, -1),
        ({"thinkingBudget": 0}, False, None, 0),
        ({"thinkingBudget": 99.0}, True, None, 99),
        ({"thinkingBudget": -1}, None, None, -1),
        ({"thinkingLevel": "HIGH"}, None, "high", -1),
        ({"thinkingLevel": "minimal"}, None, "low", -1),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None, None, -1),
    ],
)
def test_thinking(thinking: Any, enabled: Any, effort: str | None, budget: int) -> None:
    found = request(generationConfig={"thinkingConfig": thinking})
    assert found.template_variables.get("enable_thinking") is enabled
    assert found.template_variables.get("reasoning_effort") == effort
    assert found.thinking_budget == ThinkingBudget(budget)


def test_thoughts_are_shown_on_demand() -> None:
    assert not asked().shows_thoughts
    shown = asked(generationConfig={"thinkingConfig": {"includeThoughts": True}})
    assert shown.shows_thoughts


# ---- counting ----------------------------------------------------------------------------------


def test_counts() -> None:
    def read(**body: Any) -> Any:
        made: Any = body
        return read_content_input(made, model_options()).what

    instruction = {"parts": text("Be short.")}
    plain = read(contents=CONTENTS, systemInstruction=instruction)
    whole = {"contents": CONTENTS, "systemInstruction": instruction, "generationConfig": {}}
    assert plain.messages == read(generateContentRequest=whole, contents=[]).messages
    assert len(plain.messages) == 2
    empty: list[Any] = [{}, {"contents": None}, {"generateContentRequest": {}}, {"contents": []}]
    for nothing in empty:
        with pytest.raises(EngineError, match="the conversation is missing"):
            read(**nothing)


# ---- anything ----------------------------------------------------------------------------------

PARTS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.text(max_size=5),
        "thought": st.none() | st.booleans(),
        "functionCall": st.none() | st.just(CALL["functionCall"]),
        "functionResponse": st.none() | st.just(returned({})["functionResponse"]),
        "executableCode": st.none() | st.just({}),
        "inlineData": st.none() | st.just({"mimeType": "image/png", "data": "AAAA"}),
        "unknown": st.integers(),
    },
)
CONTENT = st.fixed_dictionaries(
    {"parts": st.lists(PARTS, max_size=3)},
    optional={"role": st.sampled_from(["user", "model", "function", "system", None])},
)


@given(st.lists(CONTENT, min_size=1, max_size=5))
def test_every_conversation_can_be_read(contents: list[Any]) -> None:
    messages = request(contents=contents).messages
    ids = [call["id"] for each in messages for call in each.get("tool_calls", ())]
    assert len(set(ids)) == len(ids)
    for before, after in pairwise(messages):
        assert before["role"] != after["role"] or before["role"] not in ("user", "assistant")
