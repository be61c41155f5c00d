"""An answer whose beginning the client has written, which some APIs repeat."""

import json
from typing import Any

import pytest

from contract_tests.kit.bodies import MESSAGES
from contract_tests.kit.server import Server

CHAT = "/v1/chat/completions"
GREEDY = {"max_tokens": 6, "temperature": 0}
BEGUN = {"role": "assistant", "content": "They are"}
THINKING = {"role": "assistant", "content": "", "reasoning_content": "First"}
BOTH = {"role": "assistant", "content": "So", "reasoning_content": "First"}
GOES_ON = {"continue_final_message": True}


def asked(last: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [*MESSAGES, last], **GREEDY, **more}


def whole(server: Server, **body: Any) -> list[tuple[str, str]]:
    """Returns (reasoning, content) of each choice."""
    messages = [choice["message"] for choice in server.ask(CHAT, body)["choices"]]
    return [(each.get("reasoning_content", ""), each["content"] or "") for each in messages]


def streamed(server: Server, **body: Any) -> tuple[str, str]:
    deltas = [
        event.json["choices"][0]["delta"]
        for event in server.events(CHAT, {**body, "stream": True})
        if event.data != "[DONE]" and event.json["choices"]
    ]
    thoughts = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    return thoughts, "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("last", [BEGUN, THINKING, BOTH], ids=["text", "thoughts", "both"])
def test_an_answer_begins_with_the_prefill(last: dict[str, Any], server: Server) -> None:
    [(thoughts, content)] = whole(server, **asked(last))
    assert thoughts.startswith(last.get("reasoning_content", ""))
    assert content.startswith(last["content"])
    assert len(thoughts + content) > len(
        "".join(last.get(key, "") for key in last if key != "role")
    )
    assert streamed(server, **asked(last)) == (thoughts, content)
    assert whole(server, **asked(last, **GOES_ON)) == [(thoughts, content)]
    assert streamed(server, **asked(last, **GOES_ON, echo=True)) == (thoughts, content)


def test_a_stream_of_a_continued_message_has_only_new_text(server: Server) -> None:
    [(_, content)] = whole(server, **asked(BEGUN))
    thoughts, new = streamed(server, **asked(BEGUN, **GOES_ON))
    assert (thoughts, BEGUN["content"] + new) == ("", content)


def test_each_choice_begins_with_the_prefill(server: Server) -> None:
    choices = whole(server, **asked(BEGUN, n=2, temperature=2, seed=3))
    assert len(choices) == 2
    assert all(content.startswith(BEGUN["content"]) for _, content in choices)


def test_an_option_keeps_reasoning_in_the_text(server: Server) -> None:
    [(thoughts, content)] = whole(server, **asked(BOTH, reasoning_format="none"))
    assert not thoughts
    assert content.index("First") < content.index("So")


def test_an_empty_generation_returns_the_prefill(server: Server) -> None:
    assert whole(server, **asked(BEGUN, max_tokens=0))[0][1].startswith(BEGUN["content"])


def test_other_apis(server: Server) -> None:
    """Messages equal chat completions; an answer in Ollama's format has only new text."""
    [(_, content)] = whole(server, **asked(BEGUN))
    [block] = server.ask("/v1/messages", asked(BEGUN))["content"]
    assert block["text"] == content
    body = asked(BEGUN, options={"temperature": 0}, stream=False)
    assert BEGUN["content"] + server.ask("/api/chat", body)["message"]["content"] == content


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 20]}},
    "required": ["name", "age"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


def _begun(content: str) -> dict[str, Any]:
    last = {"role": "assistant", "content": content}
    return asked(last, response_format=FORM, max_tokens=100)


@pytest.mark.parametrize("content", ['{"name": "Ada", ', '{"na', '{"name": "A'])
def test_a_schema_holds_for_the_whole_answer(content: str, server: Server) -> None:
    [(_, answer)] = whole(server, **_begun(content))
    assert answer.startswith(content)
    assert set(json.loads(answer)) == {"name", "age"}
    assert streamed(server, **_begun(content)) == ("", answer)


def test_a_beginning_that_is_the_whole_answer(server: Server) -> None:
    complete = '{"name": "Ada", "age": 20}'
    assert whole(server, **_begun(complete)) == [("", complete)]


def test_a_beginning_that_contradicts_the_schema(server: Server) -> None:
    refused = server.post(CHAT, _begun("Hello"))
    assert refused.status_code == 400
    assert "begins an answer" in refused.json()["error"]["message"]
