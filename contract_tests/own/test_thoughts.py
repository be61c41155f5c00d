"""The shipped model's reasoning is kept apart from the content, in probabilities and in
prefills."""

from typing import Any

import pytest

from contract_tests.kit.server import Server, Start

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello, who are you?"}]
ASKED: dict[str, Any] = {"max_tokens": 400, "temperature": 0, "logprobs": True, "top_logprobs": 1}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(module_server: Start) -> Server:
    return module_server("-c", "2048", "-np", "1")


def text_of(tokens: list[Any]) -> str:
    return b"".join(bytes(token["bytes"]) for token in tokens).decode()


def test_probabilities_of_a_chat_are_those_of_the_content(server: Server) -> None:
    asked = {"messages": HELLO, **ASKED}
    choice = server.ask(CHAT, asked)["choices"][0]
    assert choice["message"]["reasoning_content"]
    assert text_of(choice["logprobs"]["content"]) == choice["message"]["content"]
    tokens: list[Any] = []
    for event in server.events(CHAT, {**asked, "stream": True}):
        if event.data == "[DONE]" or not event.json["choices"]:
            continue
        [part] = event.json["choices"]
        if part.get("logprobs"):
            assert part["delta"]["content"]
            tokens += part["logprobs"]["content"]
    assert text_of(tokens) == choice["message"]["content"]


def test_a_call_has_no_probabilities(server: Server) -> None:
    asked = {"messages": HELLO, **ASKED, "tools": [TOOL], "tool_choice": "required"}
    choice = server.ask(CHAT, asked)["choices"][0]
    assert choice["message"]["tool_calls"]
    assert choice["logprobs"] == {"content": []}


def test_probabilities_of_a_response_are_those_of_its_text(server: Server) -> None:
    include = ["message.output_text.logprobs"]
    asked = {"input": HELLO, "max_output_tokens": 400, "temperature": 0, "include": include}
    *_, message = server.ask("/v1/responses", asked)["output"]
    [part] = message["content"]
    assert text_of(part["logprobs"]) == part["text"]


def test_a_prefill_with_closed_reasoning_is_parsed(server: Server) -> None:
    apart = {"role": "assistant", "content": "Hello", "reasoning_content": "I greet."}
    marked = {"role": "assistant", "content": "<think>\nI greet.\n</think>\n\nHello"}
    one, other = (
        server.ask(CHAT, {"messages": [*HELLO, last], **ASKED})["choices"][0]
        for last in (apart, marked)
    )
    assert one["message"]["reasoning_content"] == "I greet."
    assert one["message"]["content"].startswith("Hello")
    assert other == one
