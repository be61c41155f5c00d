"""Provokes statuses of the operations on stored responses, conversations and streams."""

from typing import Any

import httpx

from contract_tests.kit import contract
from contract_tests.kit.bodies import (
    BODIES,
    RESPONSES,
    body,
    path,
)
from contract_tests.kit.server import Server
from contract_tests.kit.situations import send


def bad_response(server: Server, name: str) -> list[httpx.Response]:
    """Sends items and tools that don't fit together, and references to missing things."""
    user = {"role": "user", "content": "Hello"}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "x"}
    inputs: tuple[Any, ...] = (
        None,
        {},
        7,
        [user, call],
        [user, call, {**result, "output": 5}],
        [{"role": "user"}],
        [{}],
        ["Hello"],
    )
    inputs += ([{**user, "role": ""}], [{"type": "item_reference", "id": "msg_0"}])
    inputs += ([{**user, "content": ["Hello"]}], [{**call, "arguments": {}}])
    tool = {"type": "function", "name": "f"}
    changes: list[dict[str, Any]] = [{"input": each} for each in inputs]
    tools: tuple[Any, ...] = ([{**tool, "parameters": []}], [{"type": "function"}], [{}], {}, "f")
    changes += [{"tools": each} for each in tools]
    changes += [{"tool_choice": each} for each in ("must", {"type": "function", "name": "f"})]
    changes += [{"previous_response_id": each} for each in ("resp_0", "", 7)]
    changes += [{"text": {"format": {"type": "json_schema"}}}, {"text": {"format": "json"}}]
    changes += [{"conversation": each} for each in (7, {}, {"id": 7}, "x" * 1025)]
    changes.append({"conversation": "conv_0", "previous_response_id": "resp_0"})
    changes += [{"truncation": 5}, {"metadata": [1]}, {"reasoning": "high"}]
    if name in RESPONSES:
        schema = {"type": "json_schema", "schema": {"type": 5}}
        changes += [{"background": True, "store": False}, {"background": 1}]
        changes += [{"max_output_tokens": -2}, {"n": 2}, {"text": {"format": schema}}]
    return [send(server, name, **change) for change in changes]


def no_response(server: Server, name: str) -> list[httpx.Response]:
    method, where = contract.operations()[name].method, path(name)
    others = ("resp_" + "0" * 48, "x" * 1024, "%F0%9F%A6%99", "a%00b", "'; DROP TABLE responses")
    return [server.http.request(method, where.replace("resp_0", each)) for each in others]


def of_response(server: Server, name: str) -> list[httpx.Response]:
    background = name == "cancel_response"  # only background responses can be cancelled
    response = server.ask("/v1/responses", body("create_response", background=background))
    where = path(name).replace("resp_0", response["id"])
    return [server.http.request(contract.operations()[name].method, where)]


def unknown_conversation(server: Server, name: str) -> list[httpx.Response]:
    """Continues conversations that aren't there."""
    others: tuple[Any, ...] = ("conv_0", {"id": "conv_0"}, "resp_0", {"id": ""}, "a\0b")
    return [send(server, name, conversation=each) for each in others]


def of_conversation(server: Server, name: str) -> list[httpx.Response]:
    made = server.ask("/v1/conversations", body("create_conversation"))
    items = contract.check(server.get(f"/v1/conversations/{made['id']}/items"))["data"]
    where = path(name).replace("conv_0", made["id"]).replace("msg_0", items[0]["id"])
    return [_asked(server, name, where)]


def no_such_conversation(server: Server, name: str) -> list[httpx.Response]:
    """Requests conversations and items that aren't there."""
    others = ("conv_" + "0" * 48, "resp_0", "x" * 1024, "%F0%9F%A6%99", "a%00b")
    responses = [_asked(server, name, path(name).replace("conv_0", each)) for each in others]
    if "msg_0" in path(name):
        made = server.ask("/v1/conversations", body("create_conversation"))
        where = path(name).replace("conv_0", made["id"])
        responses += [_asked(server, name, where.replace("msg_0", each)) for each in others]
    return responses


def bad_conversation(server: Server, name: str) -> list[httpx.Response]:
    """Sends invalid ids, items, labels and queries."""
    where, wrong = path(name), list[httpx.Response]()
    for id in ("conv_0", "msg_0"):
        if id in where:
            wrong.append(_asked(server, name, where.replace(id, "x" * 1025)))
    if name == "list_conversation_items":
        wrong += [server.get(where + query) for query in ("?limit=0", "?limit=x", "?order=up")]
        made = server.ask("/v1/conversations", body("create_conversation"))
        wrong.append(server.get(f"{where.replace('conv_0', made['id'])}?after=msg_0"))
    changes: tuple[dict[str, Any], ...] = ({"metadata": [1]}, {"metadata": 7})
    if "items" in BODIES.get(name, {}):
        items: tuple[Any, ...] = (7, {}, "x", [7], [{}], [{"role": "user"}], [[]])
        items += ([{"type": "item_reference", "id": "msg_0"}],)
        changes = tuple({"items": each} for each in items)
        made = server.ask("/v1/conversations", body("create_conversation"))
        where = where.replace("conv_0", made["id"])
    if name in BODIES:
        headers = {"Content-Type": "application/json"}
        malformed = (b"{", b"\xff\xfe", b"NaN", b"[]", b'"text"', b"7")
        wrong += [server.post(where, content=raw, headers=headers) for raw in malformed]
        wrong += [server.post(where, body(name, **change)) for change in changes]
    return wrong


def other_media(server: Server, name: str) -> list[httpx.Response]:
    """Adds a file that only OpenAI's server has."""
    made = server.ask("/v1/conversations", body("create_conversation"))
    where = path(name).replace("conv_0", made["id"])
    part = {"type": "input_file", "file_id": "file_1"}
    items = [{"role": "user", "content": [part]}]
    return [server.post(where, body(name, items=items))]


def _asked(server: Server, name: str, where: str) -> httpx.Response:
    """Sends the operation's small valid request to another path."""
    sent = {"json": body(name)} if name in BODIES else {}
    return server.http.request(contract.operations()[name].method, where, **sent)


def replay(server: Server, name: str) -> list[httpx.Response]:
    return [server.get(path(name) + "?stream=true")]


def of_stream(server: Server, name: str) -> list[httpx.Response]:
    """Requests a complete stream, a running stream, and, if a repeat is allowed, a missing one."""
    asked = body("create_chat_completion", stream=True)
    method, conversation = contract.operations()[name].method, {"X-Conversation-Id": name}
    where = path(name).replace("contract-tests", name)
    server.post("/v1/chat/completions", asked, headers=conversation)
    responses = [server.http.request(method, where)]
    asked = body("create_chat_completion", stream=True, max_tokens=200, ignore_eos=True)
    with server.http.stream(
        "POST", server.url + "/v1/chat/completions", json=asked, headers=conversation
    ) as running:
        next(running.iter_raw())
        responses.append(server.http.request(method, where))
    if name == "delete_stream":
        responses.append(server.http.request(method, where))
    return responses


def no_stream(server: Server, name: str) -> list[httpx.Response]:
    method, where = contract.operations()[name].method, path(name)
    others = ("none", "%F0%9F%A6%99", "a%00b", "::", "x" * 1024)
    return [server.http.request(method, where.replace("contract-tests", each)) for each in others]


def no_conversation(server: Server, name: str) -> list[httpx.Response]:
    method, where = contract.operations()[name].method, path(name)
    wrong = [where.partition("?")[0], where.replace("contract-tests", "")]
    wrong.append(where.replace("contract-tests", "x" * 1025))
    if name == "get_stream":
        wrong += [f"{where}&from={each}" for each in ("-1", "x", "1.5", str(2**64))]
    return [server.http.request(method, each) for each in wrong]


def bad_lookup(server: Server, name: str) -> list[httpx.Response]:
    headers = {"Content-Type": "application/json"}
    malformed = (b"{", b"", b"\xff\xfe", b"NaN", b"null", b"[]", b'"text"', b"7")
    responses = [server.post(path(name), content=raw, headers=headers) for raw in malformed]
    wrong: tuple[Any, ...] = ("x", 7, {}, [7], [None], ["x" * 1025], ["x"] * 4097)
    return [*responses, *(server.post(path(name), {"conversation_ids": each}) for each in wrong)]


def nothing_to_control(server: Server, name: str) -> list[httpx.Response]:
    good: dict[str, Any] = {"id": "chatcmpl-0", "action": "reasoning_end"}
    changes: list[dict[str, Any]] = [{"id": each} for each in (None, "", 7, "x" * 1025)]
    changes += [{"action": each} for each in (None, "", "reasoning_begin", 7)]
    changes.append({"model": 7})
    return [server.post(path(name), {**good, **change}) for change in changes]
