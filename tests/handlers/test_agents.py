"""Sessions of coding agents, as they were recorded: each request to the real handlers, and an
engine made of paper that plays the model's turns.

In `tests/support/agents/` is a file for each session: what the agent, of that version, sent in each
turn (what is the same as in the turn before is left out), what the model says then, and the call
that the agent understood. Texts are cut.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paper_server import Server, serve

SESSIONS = sorted((Path(__file__).parents[1] / "support" / "agents").glob("*.json"))
AGENTS = ("claude-code", "codex", "opencode", "qwen-code")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from serve()


def turns(session: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each turn, with its whole request."""
    body: dict[str, Any] = {}
    for turn in json.loads(session.read_text(encoding="utf-8")):
        kept = {name: value for name, value in body.items() if name not in turn.get("gone", ())}
        body = {**kept, **turn["changes"]}
        yield turn, body


def said(says: Any) -> str:
    """What the model writes."""
    if isinstance(says, str):
        return says
    return f"<tool_call>\n{json.dumps(says)}\n</tool_call>"


def answered(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The texts and calls of the answer, in the form that the client knows."""
    answer = server.post(path, **body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return _whole(path, answer.json())
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return _streamed(path, [json.loads(line) for line in lines if line != "[DONE]"])


def _whole(path: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    if path.endswith("/responses"):
        assert answer["status"] == "completed"
        return [_item(item) for item in answer["output"]]
    if path.endswith("/messages"):
        return [
            block
            if block["type"] == "text"
            else {key: block[key] for key in ("type", "name", "input")}
            for block in answer["content"]
        ]
    [choice] = answer["choices"]
    return _chat(choice["message"])


def _item(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "message":
        return {"type": "text", "text": item["content"][0]["text"]}
    return {key: value for key, value in item.items() if key not in ("id", "status", "call_id")}


def _chat(message: dict[str, Any]) -> list[dict[str, Any]]:
    text = message.get("content")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [*([{"type": "text", "text": text}] if text else []), *calls]


def _streamed(path: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if path.endswith("/responses"):
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == done
        return [_item(item) for item in done]
    if path.endswith("/messages"):
        return _blocks(events)
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for delta in (e["choices"][0]["delta"] for e in events if e["choices"]):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"function": {"name": "", "arguments": ""}})
            for key, value in call["function"].items():
                message["tool_calls"][call["index"]]["function"][key] += value or ""
    return _chat(message)


def _blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "input": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            key = "input" if "partial_json" in delta else "text"
            blocks[-1][key] += delta.get("partial_json", delta.get("text"))
    return [
        {"type": "text", "text": block["text"]}
        if block["type"] == "text"
        else {"type": "tool_use", "name": block["name"], "input": json.loads(block["input"])}
        for block in blocks
    ]


def test_all_agents_are_there() -> None:
    assert all(any(path.stem.startswith(agent) for path in SESSIONS) for agent in AGENTS)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("stream", [True, False])
def test_a_session(session: Path, stream: bool, server: Server) -> None:
    """Every turn is answered, and the agent gets the calls that the model has made."""
    for turn, body in turns(session):
        server.engine.says = said(turn["says"])
        found = answered(server, turn["path"], {**body, "stream": stream})
        expected = turn.get("call") or {"type": "text", "text": turn["says"]}
        for each in found:
            each.pop("citations", None)
        assert _comparable(found) == _comparable([expected])


def _comparable(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as values: agents and models put spaces elsewhere."""
    return [
        {**each, "arguments": json.loads(each["arguments"])}
        if isinstance(each.get("arguments"), str)
        else {key: value for key, value in each.items() if key != "id"}
        for each in said
    ]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
def test_the_model_reads_the_whole_session(session: Path, server: Server) -> None:
    """The tools of the last turn, the calls before it and their results."""
    *before, (last, body) = turns(session)
    server.engine.says = "Done."
    answered(server, last["path"], body)
    prompt = "".join(map(str, server.engine.generations[-1].prompt))
    for turn, _ in before:
        if not isinstance(turn["says"], str) and "compaction" not in session.stem:
            assert f'"name": {json.dumps(turn["says"]["name"])}' in prompt
    for text in ("Found: buy milk", "[image]"):
        if text in json.dumps(body):
            assert text in prompt
    if '"image_url": "data:' in json.dumps(body) or '"base64"' in json.dumps(body):
        assert "[image]" in prompt
    for name in _offered(body):
        assert f'"name": {json.dumps(name)}' in prompt


def _offered(body: dict[str, Any]) -> list[str]:
    """The names by which the model has to know the tools."""
    tools = list(body.get("tools") or ())
    for item in body.get("input") or ():
        tools += item.get("tools") or ()
    names = []
    for tool in tools:
        if tool.get("type") == "namespace":
            names += [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]
        elif tool.get("type") == "tool_search":
            names.append("tool_search")
        elif tool.get("type") != "web_search" and tool.get("name") != "DeferredToolPlaceholder":
            names.append((tool.get("function") or tool)["name"])
    return names


# ---- what the recorded sessions don't have -----------------------------------------------

SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
NOTES = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "",
    "tools": [{"type": "function", "name": "find"}, {"type": "web_search"}],
}


def test_a_conversation_that_is_kept(server: Server) -> None:
    """The tools that a search has found are known in the next response; so are all items."""
    body = {"tools": [SEARCH], "input": "Find the note"}
    server.engine.says = said({"name": "tool_search", "arguments": {"query": "note"}})
    first = server.post("/v1/responses", **body).json()
    [call] = first["output"]
    assert (call["type"], call["arguments"]) == ("tool_search_call", {"query": "note"})
    assert first["tools"] == [{**SEARCH, "description": None}]
    found = {
        "type": "tool_search_output",
        "call_id": call["call_id"],
        "execution": "client",
        "tools": [NOTES],
    }
    server.engine.says = said({"name": "mcp__notes__find", "arguments": {}})
    more = {"type": "additional_tools", "role": "developer", "tools": [NOTES]}
    second = server.post(
        "/v1/responses", previous_response_id=first["id"], input=[found, more], tools=[NOTES]
    ).json()
    [call] = second["output"]
    assert (call["type"], call["namespace"], call["name"]) == (
        "function_call",
        "mcp__notes",
        "find",
    )
    [echoed] = second["tools"]
    assert [tool["type"] for tool in echoed["tools"]] == ["function"]
    url = f"/v1/responses/{second['id']}/input_items"
    listed = server.checked(server.http.get(url), "/v1/responses/{response_id}/input_items").json()
    assert [item["type"] for item in listed["data"]] == ["additional_tools", "tool_search_output"]
    assert listed["data"][0]["tools"] == listed["data"][1]["tools"] == [NOTES]


def test_a_search_that_was_cut(server: Server) -> None:
    server.engine.says = '<tool_call>\n{"name": "tool_search", "arguments": {"query": "no'
    answer = server.post("/v1/responses", tools=[SEARCH], input="Find").json()
    [call] = answer["output"]
    assert isinstance(call["arguments"], str)
    assert call["arguments"].startswith('{"query": "no')


def test_tools_that_come_in_the_middle(server: Server) -> None:
    definition = {"name": "late", "description": "Comes late.", "input_schema": {"type": "object"}}
    tool = {"type": "tool_definition", "definition": definition}
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]},
    ]
    server.engine.says = said({"name": "late", "arguments": {}})
    answer = server.post("/v1/messages", messages=messages, max_tokens=9).json()
    assert [block["name"] for block in answer["content"]] == ["late"]
    prompt = "".join(map(str, server.engine.generations[-1].prompt))
    assert "Comes late." in prompt
    assert "Tool added: late" in prompt
