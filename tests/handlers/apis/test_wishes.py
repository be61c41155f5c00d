"""Priority and time limits in the bodies of every API, and in headers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit import contract
from specllama.handlers.apis.anthropic.request import read_message
from specllama.handlers.apis.gemini.request import read_content
from specllama.handlers.apis.native.request import read_completion, read_infill
from specllama.handlers.apis.ollama.request import (
    read_ollama_chat,
    read_ollama_generation,
    read_ollama_inputs,
    read_ollama_prompt,
)
from specllama.handlers.apis.openai.embeddings import read_embeddings
from specllama.handlers.apis.openai.request import read_chat_completion, read_text_completion
from specllama.handlers.apis.responses.items import input_items
from specllama.handlers.apis.responses.request import read_response
from specllama.handlers.apis.wishes import RANGES, wishes_in, wishes_in_headers
from specllama.handlers.running.terms import NO_WISHES, Wishes
from tests.support.options_support import model_options

MESSAGES = [{"role": "user", "content": "a"}]
ALL = {"priority": -3, "timeout_ms": 2500.9, "t_max_prompt_ms": 40}
WANTED = Wishes(-3, 2500, 40)


def _response(body: Any, options: Any) -> Any:
    items: Any = input_items(body["input"])
    return read_response(body, options, conversation=[], items=items)


def _in_options(body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {**body, "options": fields}


def _in_config(body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    names = {"timeout_ms": "timeoutMs", "t_max_prompt_ms": "tMaxPromptMs"}
    return {**body, "generationConfig": {names.get(name, name): v for name, v in fields.items()}}


def _at_top(body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {**body, **fields}


Place = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
DIALECTS: dict[str, tuple[Callable[..., Any], dict[str, Any], Place]] = {
    "completion": (read_completion, {"prompt": "a"}, _at_top),
    "infill": (read_infill, {"input_prefix": "a", "input_suffix": "b"}, _at_top),
    "text": (read_text_completion, {"prompt": "a"}, _at_top),
    "chat": (read_chat_completion, {"messages": MESSAGES}, _at_top),
    "message": (read_message, {"messages": MESSAGES}, _at_top),
    "response": (_response, {"input": "a"}, _at_top),
    "Ollama's chat": (read_ollama_chat, {"messages": MESSAGES}, _in_options),
    "Ollama's chat, at the top": (read_ollama_chat, {"messages": MESSAGES}, _at_top),
    "Ollama's generation": (read_ollama_generation, {"prompt": "a"}, _in_options),
    "content": (read_content, {"contents": [{"parts": [{"text": "a"}]}]}, _in_config),
    "embeddings": (read_embeddings, {"input": "a"}, _at_top),
    "Ollama's inputs": (read_ollama_inputs, {"input": "a"}, _in_options),
    "Ollama's prompt": (read_ollama_prompt, {"prompt": "a"}, _in_options),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_reads_the_fields(name: str) -> None:
    read, body, place = DIALECTS[name]
    options = model_options()
    assert read(place(body, {}), options).wishes == NO_WISHES
    assert read(place(body, dict.fromkeys(ALL)), options).wishes == NO_WISHES
    assert read(place(body, ALL), options).wishes == WANTED


QUEUES = ("completion", "infill", "text", "chat", "message", "response")


@pytest.mark.parametrize("name", DIALECTS)
def test_streams_of_events_can_show_the_queue(name: str) -> None:
    read, body, _ = DIALECTS[name]
    request = read({**body, "return_queue": True}, model_options())
    assert getattr(request, "shows_queue", False) == (name in QUEUES)


@given(st.fixed_dictionaries({name: st.floats(allow_nan=False) for name in RANGES}))
def test_values_are_clamped(fields: dict[str, float]) -> None:
    for (name, (low, high)), value in zip(RANGES.items(), wishes_in(fields), strict=True):
        asked = fields[name]
        assert value is not None
        if low <= asked <= high:
            assert value == int(asked)
        else:
            assert value == (low if asked < low else high)


def test_clamping_is_remarked(caplog: pytest.LogCaptureFixture) -> None:
    wishes_in({"priority": 127, "timeout_ms": -1})
    assert not caplog.records
    wishes_in({"priority": 128})
    assert "priority: 128 is out of range" in caplog.text


HEADERS = [
    (b"x-request-priority", b"-3"),
    (b"accept", b"*/*"),
    (b"x-request-timeout-ms", b"2500.9"),
    (b"x-request-prompt-timeout-ms", b"4e1"),
]


def test_headers_have_the_same_meaning() -> None:
    assert wishes_in_headers([]) == NO_WISHES
    assert wishes_in_headers([(b"priority", b"1")]) == NO_WISHES
    assert wishes_in_headers(HEADERS) == WANTED
    assert wishes_in_headers([*HEADERS, (b"x-request-priority", b"9")]) == WANTED
    assert wishes_in({"priority": 1}).or_else(wishes_in_headers(HEADERS)) == Wishes(1, 2500, 40)
    assert wishes_in({"timeout_ms": 0}).or_else(wishes_in_headers(HEADERS)) == Wishes(-3, 0, 40)


@pytest.mark.parametrize("value", [b"", b"soon", b"nan", b"1,2", b"\xff"])
def test_headers_that_are_no_numbers_are_ignored(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert wishes_in_headers([(b"x-request-timeout-ms", value)]) == NO_WISHES
    assert "x-request-timeout-ms: this is no number" in caplog.text


@given(st.binary(max_size=8))
def test_no_header_is_an_error(value: bytes) -> None:
    wishes_in_headers([(b"x-request-priority", value), (b"x-request-timeout-ms", value)])


def test_headers_have_the_ranges_of_the_fields() -> None:
    operation = contract.operations()["create_completion"].definition
    parameters = {each["name"].lower(): each["schema"] for each in operation["parameters"]}
    for name, limits in RANGES.items():
        header = {"t_max_prompt_ms": "x-request-prompt-timeout-ms"}.get(
            name, f"x-request-{name.replace('_', '-')}"
        )
        assert tuple(parameters[header]["x-clamped"]) == limits
