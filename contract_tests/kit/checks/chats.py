"""Checks of conversations: OpenAI's chats and responses, Anthropic's messages, Ollama's chats. See
`checks`."""

import base64
import json
from typing import Any

import jsonschema_rs
import pytest

from contract_tests.kit import chat, contract
from contract_tests.kit.bodies import MESSAGES, NO_THOUGHT, body, path
from contract_tests.kit.chat import SWITCH
from contract_tests.kit.events import read_events
from contract_tests.kit.server import OwnServer, Server

GREEDY: dict[str, Any] = {"temperature": 0, "seed": 7}
LAST_WORDS = " Enough of that."
THINKING: dict[str, Any] = {
    "thinking_forced_open": True,
    "reasoning_format": "deepseek",
    "reasoning_budget_tokens": 4,
    "reasoning_budget_message": LAST_WORDS,
    "max_tokens": 48,
    "ignore_eos": True,
    # Reasoning that the model ends itself has no last words.
    "logit_bias": [["</think>", -50]],
}
AT_ONCE: dict[str, Any] = {"reasoning_budget_tokens": 0, **NO_THOUGHT}


def calls_have_their_arguments(server: Server) -> None:
    """A forced call is complete, in a plain answer and in a stream."""
    request = chat.asking()
    chat.check_calls(chat.the_answer(server, request), request["tools"])


def calls_of_responses_have_their_arguments(server: Server) -> None:
    request = {
        "input": "Light, please.",
        "tools": [{"type": "function", "name": "switch", "parameters": SWITCH}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": chat.N_TOKENS,
        **AT_ONCE,
    }
    for stream in (False, True):
        answer = contract.check(server.post("/v1/responses", {**request, "stream": stream}))
        response = answer[-1]["response"] if stream else answer
        [call] = [item for item in response["output"] if item["type"] == "function_call"]
        assert call["name"] == "switch"
        jsonschema_rs.validate(SWITCH, _json(call["arguments"]))
        if stream:
            kind = "response.function_call_arguments.delta"
            pieces = "".join(each["delta"] for each in answer if each["type"] == kind)
            assert pieces == call["arguments"]


def calls_of_messages_have_their_arguments(server: Server) -> None:
    request = {
        "messages": MESSAGES,
        "tools": [{"name": "switch", "input_schema": SWITCH}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": chat.N_TOKENS,
        **AT_ONCE,
    }
    message = contract.check(server.post("/v1/messages", request))
    assert message["stop_reason"] == "tool_use"
    [call] = [block for block in message["content"] if block["type"] == "tool_use"]
    assert call["name"] == "switch"
    assert jsonschema_rs.is_valid(SWITCH, call["input"]), f"not by the tool's schema: {call}"
    events = contract.check(server.post("/v1/messages", {**request, "stream": True}))
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    assert jsonschema_rs.is_valid(SWITCH, _json(arguments)), arguments


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise AssertionError(f"a call's arguments are not JSON: {text!r:.300}") from error


def thoughts_stay_apart(server: Server) -> None:
    """Reasoning is not part of the content, in any API."""
    request: dict[str, Any] = {"messages": MESSAGES, **THINKING}
    for answer in chat.answers(server, request):
        assert LAST_WORDS not in answer.content, f"thoughts in the content: {answer.content!r}"
        if not answer.reasoning:
            assert not isinstance(server, OwnServer), "the shipped model thinks"
            pytest.skip("the model doesn't reason, or the server doesn't separate its reasoning")
        assert answer.reasoning.endswith(LAST_WORDS), answer.reasoning
    thought = {"type": "thinking", "thinking": "First,", "signature": ""}
    begun = [*MESSAGES, {"role": "assistant", "content": [thought]}]
    message = contract.check(server.post("/v1/messages", {**request, "messages": begun}))
    texts = [block["text"] for block in message["content"] if block["type"] == "text"]
    said = "".join(texts)
    assert LAST_WORDS not in said, f"thoughts in the text of a message: {said!r}"
    begun = [*MESSAGES, {"role": "assistant", "content": "", "thinking": "First,"}]
    request |= {"messages": begun, "options": {"num_predict": 48}, "stream": False}
    said = contract.check(server.post("/api/chat", request))["message"]["content"]
    assert LAST_WORDS not in said, f"thoughts in Ollama's content: {said!r}"


def chats_stop_at_their_stop_strings(server: Server) -> None:
    """Each API has its own field for stop strings, and its finish reason says that one was met."""
    request = {"messages": MESSAGES, "max_tokens": 24, "ignore_eos": True, **GREEDY, **AT_ONCE}
    whole = server.ask(chat.PATH, request)["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    expected = whole[: whole.index(stop)]
    choice = server.ask(chat.PATH, {**request, "stop": [stop]})["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    message = server.ask("/v1/messages", {**request, "stop_sequences": [stop]})
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    said = "".join(block["text"] for block in message["content"] if block["type"] == "text")
    assert stop not in said, f"a message shows its stop sequence: {said!r}"


def events_of_responses_are_in_order(server: Server) -> None:
    """Events are numbered, and their pieces add up to the whole response in the last event."""
    request = body("create_response", max_output_tokens=12, stream=True, **AT_ONCE)
    events = contract.check(server.post("/v1/responses", request))
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events))), f"events are numbered {numbers}"
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), f"the last of {kinds}"
    final = events[-1]["response"]
    for added, done in (
        ("response.output_item.added", "response.output_item.done"),
        ("response.content_part.added", "response.content_part.done"),
    ):
        assert kinds.count(added) == kinds.count(done) > 0, f"{added} without {done}: {kinds}"
        assert kinds.index(added) < kinds.index(done), kinds
    delta = "response.output_text.delta"
    streamed = "".join(event["delta"] for event in events if event["type"] == delta)
    [done] = [event["text"] for event in events if event["type"] == "response.output_text.done"]
    [item] = [item for item in final["output"] if item["type"] == "message"]
    assert streamed == done == item["content"][0]["text"]
    items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert items == final["output"]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}


def responses_are_kept(server: Server) -> None:
    """A stored response can be requested until it is deleted. `store: false` stores nothing."""
    made = contract.check(server.post("/v1/responses", body("create_response")))
    where = f"/v1/responses/{made['id']}"
    found = contract.check(server.get(where))
    assert found["output"] == made["output"]
    items = contract.check(server.get(f"{where}/input_items"))["data"]
    assert body("create_response")["input"] in json.dumps(items)
    contract.check(server.http.delete(where))
    contract.check(server.get(where), 404)
    unkept = contract.check(server.post("/v1/responses", body("create_response", store=False)))
    contract.check(server.get(f"/v1/responses/{unkept['id']}"), 404)


def conversations_are_counted_as_they_are_read(server: Server) -> None:
    """Tokens counted in advance equal the counts in the answer."""
    asked = {"messages": MESSAGES, **NO_THOUGHT}
    n = contract.check(server.post("/v1/messages/count_tokens", asked))["input_tokens"]
    usage = server.ask("/v1/messages", body("create_message"))["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert read + usage["cache_creation_input_tokens"] == n, "create_message"
    events = contract.check(server.post("/v1/messages", body("create_message", stream=True)))
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    for usage in (begun, ended):
        read = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert read + usage["cache_creation_input_tokens"] == n, "a stream of create_message"
    asked = {"input": body("create_response")["input"], **NO_THOUGHT}
    n = contract.check(server.post(path("count_response_tokens"), asked))["input_tokens"]
    usage = server.ask("/v1/responses", body("create_response"))["usage"]
    assert usage["input_tokens"] == n, "create_response"
    assert usage["total_tokens"] == n + usage["output_tokens"], "create_response"
    asked = {"messages": MESSAGES, **NO_THOUGHT}
    n = contract.check(server.post(path("count_chat_tokens"), asked))
    usage = server.ask(chat.PATH, body(chat.NAME))["usage"]
    assert usage["prompt_tokens"] == n["input_tokens"], "create_chat_completion"


def events_of_messages_are_in_order(server: Server) -> None:
    """Blocks begin, grow and end one after the other, between the events of the message."""
    request = body("create_message", max_tokens=12, **GREEDY, **AT_ONCE)
    response = server.post("/v1/messages", {**request, "stream": True})
    events = contract.check(response)
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start", kinds
    assert kinds[-2:] == ["message_delta", "message_stop"], f"a message ends so: {kinds[-3:]}"
    assert kinds.count("message_start") == kinds.count("message_stop") == 1, kinds
    named = [event.event for event in read_events([response.content])]
    assert named == [event["type"] for event in events]
    at, is_open = -1, False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open, "a block begins inside another"
                at, is_open = at + 1, True
            case "content_block_delta":
                assert is_open, "a delta outside of a block"
            case "content_block_stop":
                assert is_open, "a block ends that hasn't begun"
                is_open = False
        assert event.get("index", at) == at, f"block {event['index']} in the place of {at}"
    assert not is_open, "a block is never ended"
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    streamed = "".join(delta.get("text", "") for delta in deltas)
    blocks = server.ask("/v1/messages", request)["content"]
    assert streamed == "".join(block.get("text", "") for block in blocks)


def errors_of_messages_have_their_form(server: Server) -> None:
    """Errors have Anthropic's format, from which its clients make their exceptions."""
    for request in ({"messages": 5, "max_tokens": 4}, {"messages": MESSAGES, "max_tokens": "many"}):
        error = contract.check(server.post("/v1/messages", request), 400)
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")


def lines_of_ollama_end_once(server: Server) -> None:
    """The last line has `done`, its reason, and the counts and durations."""
    options = {"num_predict": 6, "seed": 7}
    for where, request in (
        ("/api/chat", {"messages": MESSAGES, "options": options, "think": False}),
        ("/api/generate", {"prompt": "Once upon a time", "options": options}),
    ):
        *lines, last = contract.check(server.post(where, {**request, "stream": True}))
        assert lines, where
        assert [line["done"] for line in lines] == [False] * len(lines), where
        assert last["done"] is True, f"{where}: the last line is {last}"
        whole = contract.check(server.post(where, {**request, "stream": False}))
        for name in ("done_reason", "prompt_eval_count", "eval_count"):
            assert last[name] == whole[name], f"{where}: {name}"
        assert whole["eval_count"] <= 6, where
        assert whole["total_duration"] >= whole["eval_duration"] >= 0, where
    text = {"prompt": "Once upon a time", "raw": True, "options": options, "stream": False}
    n = len(server.ask("/tokenize", {"content": text["prompt"], "add_special": True})["tokens"])
    assert server.ask("/api/generate", text)["prompt_eval_count"] == n


def conversations_grow(server: Server) -> None:
    """The items of a conversation precede the input, and what was said is added at its end."""
    asked = body("create_response", **AT_ONCE)
    items = [{"role": "user", "content": "My name is Ann."}]
    talk = contract.check(server.post("/v1/conversations", {"items": items}))["id"]
    made = contract.check(server.post("/v1/responses", {**asked, "conversation": talk}))
    alone = contract.check(server.post("/v1/responses", asked))
    assert made["usage"]["input_tokens"] > alone["usage"]["input_tokens"], "its items are missing"
    where = f"/v1/conversations/{talk}"
    page = contract.check(server.get(f"{where}/items?order=asc"))
    roles = [each["role"] for each in page["data"] if each["type"] == "message"]
    assert roles[:2] == ["user", "user"], f"the items of a conversation: {roles}"
    assert page["data"][2:] == made["output"], "the output isn't at the end of the conversation"
    contract.check(server.http.delete(where))
    contract.check(server.get(where), 404)


def compactions_are_sealed(server: Server) -> None:
    """A compacted conversation can be sent on. No client can read or change it."""
    said = "The number of the room is 5520."
    items = [{"role": "user", "content": said}]
    compacted = contract.check(
        server.post("/v1/responses/compact", {**body("compact_response"), "input": items})
    )
    [item] = compacted["output"]
    sealed = item["encrypted_content"]
    opened = base64.urlsafe_b64decode(sealed.encode() + b"===")
    assert b"5520" not in opened, "a compaction can be read by everybody"
    asked = body("create_response", **AT_ONCE)
    alone = contract.check(server.post("/v1/responses", {**asked, "input": items}))
    for content, status in ((sealed, 200), (_with_other_letter(sealed), 400)):
        sent = [{**item, "encrypted_content": content}, *items]
        answer = contract.check(server.post("/v1/responses", {**asked, "input": sent}), status)
        if status == 200:
            n_tokens = answer["usage"]["input_tokens"]
            assert n_tokens > alone["usage"]["input_tokens"], "a compaction is not read"


def _with_other_letter(sealed: str) -> str:
    middle = len(sealed) // 2
    return f"{sealed[:middle]}{'A' if sealed[middle] != 'A' else 'B'}{sealed[middle + 1 :]}"


def templates_have_all_messages(server: Server) -> None:
    """The prompt has the text of each message once, in their order."""
    said = ["You are terse 5501.", "First 5502.", "Second 5503.", "Third 5504."]
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": r, "content": c} for r, c in zip(roles, said, strict=True)]
    prompt = contract.check(server.post("/apply-template", {"messages": messages}))["prompt"]
    places = [prompt.find(each) for each in said]
    assert -1 not in places, f"a message is not in the prompt: {prompt!r:.500}"
    assert places == sorted(places), f"the messages are not in order: {prompt!r:.500}"
    assert all(prompt.count(each) == 1 for each in said), f"said twice: {prompt!r:.500}"


OF_CHATS = (
    calls_have_their_arguments,
    calls_of_responses_have_their_arguments,
    calls_of_messages_have_their_arguments,
    thoughts_stay_apart,
    chats_stop_at_their_stop_strings,
    events_of_responses_are_in_order,
    responses_are_kept,
    conversations_grow,
    compactions_are_sealed,
    conversations_are_counted_as_they_are_read,
    events_of_messages_are_in_order,
    errors_of_messages_have_their_form,
    lines_of_ollama_end_once,
    templates_have_all_messages,
)
