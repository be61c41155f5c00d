"""Ollama's requests become OpenAI's."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.bodies import properties
from contract_tests.kit.contract import operations
from contract_tests.kit.lint import DESCRIPTION
from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.native.request import generation_params
from specllama.handlers.apis.ollama.request import (
    OPENAI_FIELDS,
    SAMPLING,
    frees_memory,
    generation_body,
    is_in_ollama_form,
    is_in_openai_form,
    openai_body,
    openai_messages,
)
from specllama.handlers.apis.openai.messages import chat_messages
from specllama.handlers.http.envelopes.ollama import is_ollama_client, is_openai_client

USER = {"role": "user", "content": "a"}


def test_options_are_those_of_the_description() -> None:
    schemas = DESCRIPTION.parent / "schemas"
    sampling = yaml.safe_load((schemas / "shared" / "sampling.yaml").read_text("utf-8"))
    assert set(SAMPLING) == sampling["SamplingOptions"]["properties"].keys()


def test_options_become_parameters() -> None:
    options: dict[str, Any] = {
        "num_predict": 5,
        "num_keep": 6,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "min_p": 0.125,
        "typical_p": 0.75,
        "seed": 8,
        "stop": ["x"],
        "repeat_last_n": 9,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
    }
    body = openai_body({"messages": [USER], "options": {**options, "num_ctx": 1, "grammar": 5}})
    params = generation_params(body, GenerationParams())
    renamed = {"num_predict": "n_predict", "num_keep": "n_keep"}
    assert params == GenerationParams(
        stream=True, **{renamed.get(name, name): value for name, value in options.items()}
    )


def test_options_win_and_null_is_as_nothing() -> None:
    body = {"messages": [USER], "top_k": 1, "top_p": 0.5, "max_tokens": 3, "stream": False}
    body["options"] = {"top_k": 2, "top_p": None, "num_predict": -2}
    made = openai_body(body)
    assert (made["top_k"], made["top_p"], made["n_predict"], made["stream"]) == (2, 0.5, -1, False)
    assert openai_body({"messages": [USER], "stream": None})["stream"] is True


def test_thinking() -> None:
    def made(**fields: Any) -> tuple[Any, Any]:
        body = openai_body({"messages": [USER], **fields})
        return body.get("chat_template_kwargs"), body.get("reasoning_effort")

    assert made() == (None, None)
    assert made(think=None, chat_template_kwargs={"a": 1}) == ({"a": 1}, None)
    assert made(think=True) == ({"enable_thinking": True}, None)
    assert made(think=False, chat_template_kwargs={"a": 1, "enable_thinking": True}) == (
        {"a": 1, "enable_thinking": False},
        None,
    )
    assert made(think="high") == ({"enable_thinking": True}, "high")


def test_format() -> None:
    def schema(form: Any, **fields: Any) -> Any:
        body = openai_body({"messages": [USER], "format": form, **fields})
        return generation_params(body, GenerationParams()).json_schema

    assert schema(None) is None
    assert schema("") is None
    assert schema("json") == '{"type": "object"}'
    assert schema({"type": "boolean"}) == '{"type": "boolean"}'
    assert schema("json", response_format={"type": "text"}, grammar="") == '{"type": "object"}'
    other: dict[str, Any]
    for other in ({"json_schema": {}}, {"grammar": "x"}, {"response_format": {"type": "json"}}):
        with pytest.raises(EngineError, match="format"):
            schema("json", **other)


def test_only_one_answer() -> None:
    assert "n" in openai_body({"messages": [USER], "n": 1, "n_cmpl": None})
    for name in ("n", "n_cmpl"):
        with pytest.raises(EngineError, match="one answer per request"):
            openai_body({"messages": [USER], name: 2})


def test_rivals_come_if_they_are_asked_for() -> None:
    assert openai_body({"messages": [USER], "logprobs": True})["top_logprobs"] == 0
    asked = {"messages": [USER], "logprobs": True, "top_logprobs": 4}
    assert openai_body(asked)["top_logprobs"] == 4
    assert "top_logprobs" not in openai_body({"messages": [USER], "logprobs": False})


def test_form_of_a_body() -> None:
    neither: dict[str, Any] = {"messages": [USER], "options": None, "stream": False}
    assert not is_in_ollama_form(neither)
    assert not is_in_openai_form(neither)
    assert is_in_ollama_form({"messages": [USER], "think": False})
    assert is_in_ollama_form({"messages": [USER, {**USER, "tool_name": ""}]})
    assert is_in_openai_form({"messages": [USER], "max_tokens": 0})
    assert is_in_openai_form({"messages": [USER, {**USER, "content": []}]})
    assert not is_in_openai_form({"messages": [USER], "max_tokens": None, "of_nobody": 1})


def test_fields_of_openai_are_those_of_the_description() -> None:
    ollamas = {"messages", "model", "stream", "tools", "logprobs", "top_logprobs"}
    ollamas |= {"format", "keep_alive", "options", "think"}
    schema = operations()["create_ollama_chat"].definition["requestBody"]["content"]
    assert properties(schema["application/json"]["schema"]) - ollamas == OPENAI_FIELDS


def test_clients() -> None:
    def known(**fields: str) -> bool:
        headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()]
        return is_ollama_client({"type": "http", "headers": headers})

    assert known(user_agent="Ollama-Python/1")
    assert known(user_agent="curl", accept="Application/X-NDJSON")
    assert not known()
    assert not known(user_agent="an ollama", accept="application/json", x_ollama="ollama")

    def is_openai(**fields: str) -> bool:
        headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()]
        return is_openai_client({"type": "http", "headers": headers})

    assert is_openai(user_agent="OpenAI/JS 6.1")
    assert is_openai(user_agent="AsyncOpenAI/Python 2", x_stainless_async="async:asyncio")
    assert is_openai(accept="Text/Event-Stream")
    assert not is_openai(user_agent="not OpenAI", accept="*/*", x_openai="a")


def test_calls_get_ids_and_results_find_them() -> None:
    def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments}, **more}

    made = openai_messages(
        [
            USER,
            {"role": "assistant", "thinking": "hm", "tool_calls": [call("f", {}), call("g", "{}")]},
            {"role": "tool", "tool_name": "g", "content": "1"},
            {"role": "tool", "tool_name": "f", "content": "2"},
            {"role": "tool", "tool_name": "f", "content": "3"},
            {"role": "assistant", "tool_calls": [call("f", {"ä": 1}, id="mine", type="function")]},
            {"role": "tool", "content": "4"},
            {"role": "tool", "content": "5", "tool_call_id": "theirs", "name": "h"},
        ]
    )
    assert made[0] == USER
    first, second = made[1].pop("tool_calls")
    assert made[1] == {"role": "assistant", "content": None, "reasoning_content": "hm"}
    assert first == {"id": "call00000", "type": "function",
                     "function": {"name": "f", "arguments": {}}}  # fmt: skip
    assert second["id"] == "call00001"
    results = [(m["tool_call_id"], m.get("name")) for m in made if m["role"] == "tool"]
    assert results == [
        ("call00001", "g"),
        ("call00000", "f"),
        (None, "f"),
        ("mine", None),
        ("theirs", "h"),
    ]
    [last] = made[5]["tool_calls"]
    assert last["function"]["arguments"] == {"ä": 1}
    assert last["id"] == "mine"


def test_images_stand_in_front_of_the_text() -> None:
    made = openai_messages([{**USER, "images": []}, {**USER, "images": ["x", "y"]}])
    assert made[0] == USER
    *images, text = made[1]["content"]
    places = ["messages[1].images[0]", "messages[1].images[1]"]
    assert [(each["media"].given, each["media"].where) for each in images] == [
        *zip(["x", "y"], places, strict=True)
    ]
    assert text == {"type": "text", "text": USER["content"]}
    [alone] = openai_messages([{"role": "user", "images": ["x"]}])
    assert [part["media"].kind for part in alone["content"]] == ["image"]
    read: Any = made
    assert chat_messages(read)[1]["content"] == made[1]["content"]
    prompt = generation_body({"prompt": "b", "images": ["x"]})["messages"][-1]
    assert [part["type"] for part in prompt["content"]] == ["media", "text"]


# ---- generate ----------------------------------------------------------------------------


def test_a_prompt_is_a_conversation() -> None:
    made = generation_body(
        {
            "prompt": "b",
            "system": "a",
            "options": {"num_predict": 3},
            "format": "json",
            "think": True,
        }
    )
    system = {"role": "system", "content": "a"}
    assert made["messages"] == [system, {"role": "user", "content": "b"}]
    assert (made["n_predict"], made["stream"], made["json_schema"]) == (3, True, {})
    assert made["chat_template_kwargs"] == {"enable_thinking": True}
    assert generation_body({"prompt": None})["messages"] == [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"images": ["a"], "suffix": "b"}, "invalid_request_error"),
        ({"template": "{{ .Prompt }}"}, "not_supported_error"),
        ({"raw": True, "system": "a"}, "invalid_request_error"),
        ({"raw": True, "context": [1]}, "invalid_request_error"),
        ({"suffix": "a", "system": "a"}, "invalid_request_error"),
        ({"suffix": "a", "context": [1]}, "invalid_request_error"),
    ],
)
def test_what_a_generation_can_not_have(fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(EngineError) as caught:
        generation_body({"prompt": "a", **fields})
    assert caught.value.info.type == kind


def test_what_frees_memory() -> None:
    for zero in (0, 0.0, "0", "0s", "0m", "-0", "0h0m", "0.0s", "0ms", "00"):
        assert frees_memory(zero), zero
    for other in (None, "", 1, -1, 0.5, "5m", "-1", "1h0m", "0s5ms", "s", "never", "0x"):
        assert not frees_memory(other), other


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, "a", "b"]))))
def test_a_result_has_the_id_of_the_first_open_call_of_its_tool(
    turns: list[tuple[bool, str | None]],
) -> None:
    messages: list[dict[str, Any]] = []
    expected: list[str | None] = []
    waiting: list[tuple[str, str]] = []
    for n, (calls, name) in enumerate(turns):
        if calls:
            call = {"id": f"id {n}", "function": {"name": name or "c", "arguments": {}}}
            messages.append({"role": "assistant", "tool_calls": [call]})
            waiting.append((name or "c", f"id {n}"))
        else:
            messages.append({"role": "tool", "content": "x", "tool_name": name})
            found = next((each for each in waiting if name in (None, each[0])), None)
            if found is not None:
                waiting.remove(found)
            expected.append(found and found[1])
    answered = [each for each in openai_messages(messages) if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in answered] == expected
