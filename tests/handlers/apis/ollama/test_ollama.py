"""Ollama's requests and answers, as data."""

import json
from typing import Any

import pytest
import yaml
from gguf import LlamaFileType
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.lint import DESCRIPTION
from engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from engine.errors import EngineError
from engine.params import GenerationParams
from engine.protocol.messages import Delta, Finished, StopType, Timings, TokenProbs
from handlers.apis.native.probabilities import Probabilities
from handlers.apis.native.request import generation_params
from handlers.apis.ollama.details import quantization, short_number
from handlers.apis.ollama.format import OllamaFormat
from handlers.apis.ollama.request import SAMPLING, is_in_ollama_form, openai_body, openai_messages
from handlers.http.envelopes.ollama import is_ollama_client
from handlers.running.chat_batch import ChatAnswer, ChatEvent

TIMINGS = Timings(cache_n=4, prompt_n=3, prompt_ms=6.5, predicted_n=2, predicted_ms=5.25)
USER = {"role": "user", "content": "a"}


def finished(text: str = "", stop_type: StopType = "eos", **changes: Any) -> Finished:
    fields: dict[str, Any] = {
        "id": 1,
        "text": text,
        "tokens": [],
        "stop_type": stop_type,
        "stopping_word": "",
        "truncated": False,
        "has_new_line": False,
        "id_slot": 0,
        "prompt": "",
        "n_prompt": 7,
        "n_decoded": 2,
        "timings": TIMINGS,
        "params": GenerationParams(),
    }
    return Finished(**{**fields, **changes})


def delta(text: str = "", probs: list[TokenProbs] | None = None) -> Delta:
    return Delta(1, text, [5], 0, TIMINGS, probs or [])


def streamed(*batches: list[ChatDelta], stop_type: StopType = "eos") -> list[dict[str, Any]]:
    """The lines of a stream whose engine's events bring these deltas; the last one ends it."""
    form = OllamaFormat("m")
    message = ChatMessage()
    lines: list[dict[str, Any]] = []
    for i, deltas in enumerate(batches):
        for each in deltas:
            message.add(each)
        is_last = i == len(batches) - 1
        source = finished(stop_type=stop_type) if is_last else delta()
        data = form.event(ChatEvent(0, deltas, source, message)).decode()
        assert data == "" or data.endswith("\n")
        lines += map(json.loads, data.splitlines())
    return lines


# ---- requests ----------------------------------------------------------------------------


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
        with pytest.raises(EngineError, match="only one answer"):
            openai_body({"messages": [USER], name: 2})


def test_rivals_come_if_they_are_asked_for() -> None:
    assert openai_body({"messages": [USER], "logprobs": True})["top_logprobs"] == 0
    asked = {"messages": [USER], "logprobs": True, "top_logprobs": 4}
    assert openai_body(asked)["top_logprobs"] == 4
    assert "top_logprobs" not in openai_body({"messages": [USER], "logprobs": False})


def test_form_of_a_body() -> None:
    assert not is_in_ollama_form({"messages": [USER], "options": None, "stream": False})
    assert is_in_ollama_form({"messages": [USER], "think": False})
    assert is_in_ollama_form({"messages": [USER, {**USER, "tool_name": ""}]})


def test_clients() -> None:
    def known(**fields: str) -> bool:
        headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()]
        return is_ollama_client({"type": "http", "headers": headers})

    assert known(user_agent="Ollama-Python/1")
    assert known(user_agent="curl", accept="Application/X-NDJSON")
    assert not known()
    assert not known(user_agent="an ollama", accept="application/json", x_ollama="ollama")


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


def test_images_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"messages\[1\].images") as caught:
        openai_messages([{**USER, "images": []}, {**USER, "images": ["x"]}])
    assert caught.value.info.type == "not_supported_error"


# ---- answers -----------------------------------------------------------------------------


def test_a_whole_answer() -> None:
    calls = [ToolCall("c1", "f", '{"a":[1]}'), ToolCall("c2", "g", "{}")]
    message = ChatMessage("text", "thoughts", calls)
    answer = OllamaFormat("m").answer(ChatAnswer(message, finished()))
    assert answer.pop("created_at").endswith("Z")
    assert answer.pop("total_duration") >= 0
    assert answer == {
        "model": "m",
        "message": {
            "role": "assistant",
            "content": "text",
            "thinking": "thoughts",
            "tool_calls": [
                {"id": "c1", "function": {"name": "f", "arguments": {"a": [1]}}},
                {"id": "c2", "function": {"name": "g", "arguments": {}}},
            ],
        },
        "done": True,
        "done_reason": "stop",
        "load_duration": 0,
        "prompt_eval_count": 7,
        "prompt_eval_duration": 6_500_000,
        "eval_count": 2,
        "eval_duration": 5_250_000,
    }


def test_what_is_not_there_is_left_out() -> None:
    answer = OllamaFormat("m").answer(ChatAnswer(ChatMessage("a"), finished(stop_type="limit")))
    assert answer["message"] == {"role": "assistant", "content": "a"}
    assert answer["done_reason"] == "length"
    assert "logprobs" not in answer


def test_characters_that_end_lines_are_escaped() -> None:
    text = "".join(map(chr, range(0x3000)))
    lines = streamed([Content(text)], [])
    assert [line["message"]["content"] for line in lines] == [text, ""]


def test_a_call_that_was_cut_off_is_left_out() -> None:
    calls = [ToolCall("c1", "f", "{}"), ToolCall("c2", "f", '{"a":')]
    cut = ChatAnswer(ChatMessage("", "", calls), finished(stop_type="limit"))
    answer = OllamaFormat("m").answer(cut)
    assert [call["id"] for call in answer["message"]["tool_calls"]] == ["c1"]
    assert answer["done_reason"] == "length"
    lines = streamed([CallStart(0, "c1", "f"), CallArguments(0, '{"a":')], [], stop_type="limit")
    assert len(lines) == 1
    assert lines[0]["done_reason"] == "length"


def test_calls_are_told_whole() -> None:
    lines = streamed(
        [Reasoning("hm"), Content("I call"), CallStart(0, "c1", "f")],
        [CallArguments(0, '{"a"')],
        [CallArguments(0, ":1}"), CallStart(1, "c2", "g")],
        [CallArguments(1, "{}"), Content("done")],
        [],
    )
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "I call"},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "c2", "function": {"name": "g", "arguments": {}}}]},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": ""},
    ]  # fmt: skip
    assert [line["done"] for line in lines] == [False] * 5 + [True]


texts = st.text(st.characters(codec="utf-8"), min_size=1)
objects = st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=3)
parts = st.lists(
    st.tuples(st.just("content"), texts)
    | st.tuples(st.just("thinking"), texts)
    | st.tuples(st.just("call"), objects),
    max_size=8,
)


@given(parts, st.data())
def test_lines_add_up_to_the_whole_answer(
    parts: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """In whichever pieces it comes; and no call is told twice or in pieces."""
    deltas: list[ChatDelta] = []
    n_calls = 0
    for kind, value in parts:
        if kind == "call":
            text = json.dumps(value)
            cut = data.draw(st.integers(0, len(text)))
            deltas += [CallStart(n_calls, f"c{n_calls}", "f"), CallArguments(n_calls, text[:cut])]
            deltas.append(CallArguments(n_calls, text[cut:]))
            n_calls += 1
        else:
            deltas.append(Content(value) if kind == "content" else Reasoning(value))
    message = ChatMessage()
    for each in deltas:
        message.add(each)
    ends = sorted(data.draw(st.lists(st.integers(0, len(deltas)), max_size=4)))
    batches = [
        deltas[begin:end] for begin, end in zip([0, *ends], [*ends, len(deltas)], strict=True)
    ]
    lines = streamed(*batches)
    whole = OllamaFormat("m").answer(ChatAnswer(message, finished()))["message"]
    told = [line["message"] for line in lines]
    assert "".join(each["content"] for each in told) == whole["content"]
    assert "".join(each.get("thinking", "") for each in told) == whole.get("thinking", "")
    calls = [call for each in told for call in each.get("tool_calls", [])]
    assert calls == whole.get("tool_calls", [])


def test_probabilities_go_with_the_text_they_belong_to() -> None:
    def probs(id: int) -> list[TokenProbs]:
        return [TokenProbs(id, b"a", -0.5, [(9, b"b", -1.0)])]

    form = OllamaFormat("m", Probabilities(1, post_sampling=False))
    message = ChatMessage("ab")
    held = form.event(ChatEvent(0, [], delta(probs=probs(1)), message))
    assert held == b""
    events = [
        ChatEvent(0, [Content("ab")], delta("b", probs(2)), message),
        ChatEvent(0, [], finished(probs=probs(3)), message),
    ]
    text, end = [json.loads(form.event(event)) for event in events]
    assert [token["id"] for token in text["logprobs"]] == [1, 2]
    assert [token["id"] for token in end["logprobs"]] == [3]
    assert text["logprobs"][0]["top_logprobs"] == [
        {"id": 9, "token": "b", "bytes": [98], "logprob": -1.0}
    ]


# ---- models ------------------------------------------------------------------------------


def test_quantizations_are_those_of_the_file_format() -> None:
    for kind in LlamaFileType:
        name = kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        expected = "" if kind is LlamaFileType.GUESSED else name
        assert quantization(str(kind.value)) == expected
    assert quantization("") == quantization("x") == quantization("-1") == quantization("None") == ""


def test_short_numbers() -> None:
    numbers = [0, 999, 1000, 1_442_432, 494_032_768, 8_030_261_248, 1_000_000_000_000]
    expected = ["0", "999", "1.00K", "1.44M", "494.03M", "8.03B", "1.00T"]
    assert [short_number(n) for n in numbers] == expected
