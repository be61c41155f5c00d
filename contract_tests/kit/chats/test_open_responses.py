"""The conformance tests of Open Responses (specification of 2026-04-24), with its names: the same
requests, and the same conditions for the answers, which are also checked against the description.

https://www.openresponses.org/compliance
"""

import base64
from typing import Any

import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import body
from contract_tests.kit.checks.media import png
from contract_tests.kit.server import Server
from contract_tests.kit.sockets import connect

HELLO = [{"type": "message", "role": "user", "content": "Say hello in exactly 3 words."}]
COUNT = [{"type": "message", "role": "user", "content": "Count from 1 to 3."}]
WEATHER: dict[str, Any] = {
    "input": [
        {"type": "message", "role": "user", "content": "What's the weather like in San Francisco?"}
    ],
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Get the current weather for a location",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {
                        "type": "string",
                        "description": "The city and state, e.g. San Francisco, CA",
                    }
                },
                "required": ["location"],
            },
        }
    ],
}
RESPONSE_FIELDS = (
    "id object created_at completed_at status incomplete_details model previous_response_id "
    "instructions output error tools tool_choice truncation parallel_tool_calls text top_p "
    "presence_penalty frequency_penalty top_logprobs temperature reasoning usage max_output_tokens "
    "max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key"
)
"""The required fields of a response."""


def whole(response: Any, status: str | None = "completed") -> Any:
    """Returns `response`, after checking the conditions of the suite's schema."""
    missing = set(RESPONSE_FIELDS.split()) - response.keys()
    assert not missing
    assert response["output"]
    assert status in (None, response["status"])
    return response


def ask(server: Server, **request: Any) -> Any:
    return contract.check(server.post("/v1/responses", request))


def ended(server: Server, **request: Any) -> Any:
    """Returns the response of a stream, and all of its events."""
    events = server.events("/v1/responses", request)
    documents = contract.check_stream(contract.operations()["create_response"], events)
    return documents[-1]["response"], documents


# A model may call a tool instead of an answer, or reach its context; every other condition holds.
# The model is the server's own, so a test accepts `incomplete` where the text has no natural end.


def test_basic_response(server: Server) -> None:
    whole(ask(server, input=HELLO))


def test_assistant_phase(server: Server) -> None:
    said = [("commentary", "I should answer with the saved number."), ("final_answer", "Four.")]
    history = [
        {"type": "message", "role": "assistant", "phase": phase, "content": text}
        for phase, text in said
    ]
    question = {"type": "message", "role": "user", "content": "Repeat only the number."}
    whole(ask(server, input=[*history, question]))


def test_streaming_response(server: Server) -> None:
    response, _ = ended(server, input=COUNT)
    whole(response)


def test_system_prompt(server: Server) -> None:
    pirate = {"type": "message", "role": "system", "content": "You are a pirate."}
    whole(ask(server, input=[pirate, {"role": "user", "content": "Say hello."}]))


def test_tool_calling(server: Server) -> None:
    response = whole(ask(server, **WEATHER, tool_choice="required"), None)
    assert "function_call" in [item["type"] for item in response["output"]]


def test_tool_calling_in_a_stream(server: Server) -> None:
    _, events = ended(server, **WEATHER, tool_choice="required")
    items = [(each["type"], each["item"]["type"]) for each in events if "item" in each]
    assert ("response.output_item.added", "function_call") in items
    assert ("response.output_item.done", "function_call") in items
    types = [each["type"] for each in events]
    assert "response.function_call_arguments.delta" in types
    assert "response.function_call_arguments.done" in types


def test_image_input(server: Server) -> None:
    if not server.get("/props").json()["modalities"]["vision"]:
        pytest.skip("the server's model reads no images")
    url = f"data:image/png;base64,{base64.b64encode(png((255, 0, 0))).decode()}"
    text = {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."}
    content = [text, {"type": "input_image", "image_url": url}]
    whole(ask(server, input=[{"type": "message", "role": "user", "content": content}]), None)


def test_multi_turn(server: Server) -> None:
    turns = [("user", "My name is Alice."), ("assistant", "Hello Alice!"), ("user", "My name?")]
    items = [{"type": "message", "role": role, "content": text} for role, text in turns]
    whole(ask(server, input=items))


def test_response_output_phase_schema() -> None:
    """A response may have the phases of messages; nothing is sent."""
    schema = contract.operations()["get_response"].definition["responses"]["200"]["content"]
    messages = [
        {
            "id": f"msg_{phase}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "phase": phase,
            "content": [{"type": "output_text", "text": "Four.", "annotations": []}],
        }
        for phase in ("commentary", "final_answer")
    ]
    output = schema["application/json"]["schema"]["properties"]["output"]
    assert not list(lint.errors(output, messages))


# ---- compaction


def compact(server: Server, *said: tuple[str, str]) -> Any:
    items = [{"type": "message", "role": role, "content": text} for role, text in said]
    request = {"model": body("compact_response")["model"], "input": items}
    return server.post("/v1/responses/compact", request)


def test_compact_response(server: Server) -> None:
    agreed = "We agreed to launch on Tuesday and notify support first."
    answer = contract.check(compact(server, ("user", agreed), ("assistant", "Understood.")))
    assert answer["object"] == "response.compaction"
    assert "compaction" in [item["type"] for item in answer["output"]]


def test_compact_missing_model(server: Server) -> None:
    items = [{"type": "message", "role": "user", "content": "Compact this conversation."}]
    contract.check(server.post("/v1/responses/compact", {"input": items}), 400)


def test_websocket_compact_new_chain(server: Server) -> None:
    word = ("user", "Remember the compaction code word: slate.")
    output = contract.check(compact(server, word, ("assistant", "OK.")))["output"]
    more = {"type": "message", "role": "user", "content": "Continue from here."}
    with connect(server) as socket:
        whole(socket.respond(store=False, input=[*output, more], tools=[])["response"])


# ---- WebSockets


def test_websocket_response(server: Server) -> None:
    with connect(server) as socket:
        whole(socket.respond(input=COUNT)["response"])


def test_websocket_sequential_responses(server: Server) -> None:
    with connect(server) as socket:
        for word in ("first", "second"):
            whole(socket.respond(store=False, input=f"Reply with exactly: {word}")["response"])


def test_websocket_continuation(server: Server) -> None:
    with connect(server) as socket:
        word = "Remember the code word: cobalt. Reply with OK."
        first = whole(socket.respond(store=False, input=word)["response"])
        asked = "What is the code word? Reply with only the code word."
        second = socket.respond(store=False, input=asked, previous_response_id=first["id"])
    assert whole(second["response"])["previous_response_id"] == first["id"]
    n_first, n_second = first["usage"]["input_tokens"], second["response"]["usage"]["input_tokens"]
    assert n_second > n_first + first["usage"]["output_tokens"] // 2


def not_found(event: Any) -> bool:
    return bool(
        event["type"] == "error" and event["error"]["code"] == "previous_response_not_found"
    )


def test_websocket_reconnect_store_false_recovery(server: Server) -> None:
    with connect(server) as socket:
        first = whole(socket.respond(store=False, input="Remember: copper.")["response"])
    with connect(server) as socket:
        assert not_found(socket.respond(store=False, input="?", previous_response_id=first["id"]))
        whole(socket.respond(store=False, input="Start again.")["response"])


def test_websocket_previous_response_not_found(server: Server) -> None:
    with connect(server) as socket:
        event = socket.respond(store=False, input="x", previous_response_id="resp_missing")
    assert not_found(event)
    assert event["status"] == 400


def test_websocket_failed_continuation_evicts_cache(server: Server) -> None:
    with connect(server) as socket:
        first = whole(socket.respond(store=False, input="Remember: ember.")["response"])
        output = {"type": "function_call_output", "call_id": "call_missing", "output": "none"}
        failed = socket.respond(store=False, input=[output], previous_response_id=first["id"])
        assert failed["type"] in ("error", "response.failed")
        assert not_found(socket.respond(store=False, input="?", previous_response_id=first["id"]))


def test_websocket_generate_false(server: Server) -> None:
    """In earlier versions of the suite."""
    with connect(server) as socket:
        warmed = socket.respond(store=False, generate=False, input=HELLO)["response"]
        assert warmed["status"] == "completed"
        assert not warmed["output"]
        again = socket.respond(store=False, input="Go on.", previous_response_id=warmed["id"])
        whole(again["response"])
