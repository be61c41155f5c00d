"""Recorded sessions of coding agents: each request is sent to the whole server, whose engine
process is a stand-in that plays the model's turns.

`tests/support/agents/` has a file for each session: the request of the agent, in that version, in
each turn (without parts that are the same as in the turn before), the model's answer, and the call
that the agent parsed, or the error that it got. Texts are shortened.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from specllama.engine.errors import ErrorInfo
from tests.support.stand_in_engine import END, Turn, n_shared, tokens_of
from tests.support.stand_in_server import StandInServer, stand_in_server

pytestmark = pytest.mark.slow

SESSIONS = sorted((Path(__file__).parents[1] / "support" / "agents").glob("*.json"))
AGENTS = ("claude-code", "codex", "opencode", "qwen-code")


ONE_EACH = [min(path for path in SESSIONS if path.stem.startswith(agent)) for agent in AGENTS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInServer]:
    with stand_in_server(tmp_path_factory.mktemp("agents")) as server:
        yield server


class Answered(NamedTuple):
    """A client's view of an answer: texts and calls, the reason of its end, and the numbers of
    tokens: of the prompt, of its cached part, and of the output."""

    said: list[dict[str, Any]]
    reason: str
    n_prompt: int
    n_cached: int
    n_generated: int


def turns(session: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each turn, with its whole request."""
    body: dict[str, Any] = {}
    for turn in json.loads(session.read_text(encoding="utf-8")):
        kept = {name: value for name, value in body.items() if name not in turn.get("gone", ())}
        body = {**kept, **turn["changes"]}
        yield turn, body


def said(says: Any) -> str:
    """The model's text."""
    if isinstance(says, str):
        return says
    return f"<tool_call>\n{json.dumps(says)}\n</tool_call>"


def answered(server: StandInServer, path: str, body: dict[str, Any]) -> Answered:
    answer = server.post(path, **body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return _whole(path, answer.json())
    return _streamed(path, _events(answer.text))


def _events(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _whole(path: str, answer: dict[str, Any]) -> Answered:
    usage = answer["usage"]
    if path.endswith("/responses"):
        said = [_item(item) for item in answer["output"]]
        return Answered(said, answer["status"], *_usage(usage))
    if path.endswith("/messages"):
        said = [
            block
            if block["type"] == "text"
            else {key: block[key] for key in ("type", "name", "input")}
            for block in answer["content"]
        ]
        return Answered(said, answer["stop_reason"], *_usage(usage))
    [choice] = answer["choices"]
    return Answered(_chat(choice["message"]), choice["finish_reason"], *_usage(usage))


def _usage(usage: dict[str, Any]) -> tuple[int, int, int]:
    if "prompt_tokens" in usage:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], cached, usage["completion_tokens"]
    if "input_tokens_details" in usage:
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, usage["output_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached, usage["output_tokens"]


def _item(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "message":
        return {"type": "text", "text": item["content"][0]["text"]}
    return {key: value for key, value in item.items() if key not in ("id", "status", "call_id")}


def _chat(message: dict[str, Any]) -> list[dict[str, Any]]:
    text = message.get("content")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [*([{"type": "text", "text": text}] if text else []), *calls]


def _streamed(path: str, events: list[dict[str, Any]]) -> Answered:
    if path.endswith("/responses"):
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == done
        return _whole(path, events[-1]["response"])
    if path.endswith("/messages"):
        [start, ending] = [e for e in events if e["type"] in ("message_start", "message_delta")]
        first, last = _usage(start["message"]["usage"]), _usage(ending["usage"])
        assert first[:2] == last[:2]
        return Answered(_blocks(events), ending["delta"]["stop_reason"], *last)
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for delta in (e["choices"][0]["delta"] for e in events if e["choices"]):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"function": {"name": "", "arguments": ""}})
            for key, value in call["function"].items():
                message["tool_calls"][call["index"]]["function"][key] += value or ""
    [reason] = [why for e in events if e["choices"] and (why := e["choices"][0]["finish_reason"])]
    [usage] = [_usage(e["usage"]) for e in events if e.get("usage")]
    return Answered(_chat(message), reason, *usage)


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
    for agent in AGENTS:
        kinds = {"compaction" in path.stem for path in SESSIONS if path.stem.startswith(agent)}
        assert kinds == {True, False}


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("stream", [True, False])
def test_a_session(session: Path, stream: bool, server: StandInServer) -> None:
    """Every turn is answered by one generation, and the agent gets the calls that the model has
    made, and the number of tokens."""
    server.script.begin(*(_played(turn) for turn, _ in turns(session)))
    kept: list[int] | None = None  # the tokens that the engine has in its cache, if that is known
    for number, (turn, body) in enumerate(turns(session), start=1):
        request = {**body, "stream": stream}
        if "error" in turn:
            _refused(server.post(turn["path"], **request), turn["error"]["message"])
            continue
        found = answered(server, turn["path"], request)
        _check(turn, found)
        assert len(server.script.prompts) == number
        prompt = tokens_of([server.script.prompts[-1]], add_special=True)
        generated = [*said(turn["says"]).encode(), END]
        assert (found.n_prompt, found.n_generated) == (len(prompt), len(generated))
        if kept is not None:
            assert found.n_cached == n_shared(kept, prompt[:-1])
        kept = prompt + generated
    assert not server.script.turns


def _played(turn: dict[str, Any]) -> Turn:
    """The model's action in this turn."""
    if "error" in turn:
        return Turn(error=msgspec.convert(turn["error"], ErrorInfo))
    return Turn(said(turn["says"]))


def _refused(answer: httpx.Response, message: str) -> None:
    """A request that the engine doesn't begin is refused, streamed or not."""
    assert answer.status_code == 400
    assert message in _error(answer.json())


def _check(turn: dict[str, Any], found: Answered) -> None:
    """Checks that the agent has parsed the model's output."""
    for each in found.said:
        each.pop("citations", None)
    expected = turn.get("call") or {"type": "text", "text": turn["says"]}
    assert _comparable(found.said) == _comparable([expected])
    calls = {"responses": "completed", "messages": "tool_use", "completions": "tool_calls"}
    texts = {"responses": "completed", "messages": "end_turn", "completions": "stop"}
    reasons = calls if "call" in turn else texts
    assert found.reason == reasons[turn["path"].rpartition("/")[2]]


def _comparable(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as values: agents and models put spaces elsewhere."""
    return [
        {**each, "arguments": json.loads(each["arguments"])}
        if isinstance(each.get("arguments"), str)
        else {key: value for key, value in each.items() if key != "id"}
        for each in said
    ]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
def test_the_model_reads_the_whole_session(session: Path, server: StandInServer) -> None:
    """Checks the tools of the last turn, the earlier calls and their results; after a compaction,
    also the summary."""
    *before, (last, body) = turns(session)
    texts = [at for at, (turn, _) in enumerate(before) if isinstance(turn.get("says"), str)]
    summary = []
    if "compaction" in session.stem and texts:
        before = before[texts[-1] :]
        summary = [before[0][0]["says"]]
    server.script.begin(Turn("Done."))
    answered(server, last["path"], body)
    [prompt] = server.script.prompts
    for turn, _ in before:
        if "call" in turn:
            assert f'"name": {json.dumps(turn["says"]["name"])}' in prompt
    for text in ("Found: buy milk", "[image]", *summary):
        if json.dumps(text)[1:-1] in json.dumps(body):
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


# ---- turns that fail ---------------------------------------------------------------------

TOO_LONG = ErrorInfo("exceed_context_size_error", "the prompt is too long", 99, 64)
BROKEN = ErrorInfo("server_error", "the device is lost")
HALF = '<tool_call>\n{"name": "'


@pytest.mark.parametrize("session", ONE_EACH, ids=lambda path: path.stem)
@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_that_fails(session: Path, stream: bool, server: StandInServer) -> None:
    """The agent gets the reason in the format of its API, repeats the request once, and the session
    continues. It doesn't notice an engine process that ends before its turn begins."""
    *_, (turn, body) = turns(session)
    path, body = turn["path"], {**body, "stream": stream}
    broken = Turn("Hm.", error=BROKEN), Turn(HALF, error=BROKEN), Turn("Hm.", dies=True)
    retried = Turn(dies=True), Turn(said(turn["says"]))
    server.script.begin(Turn(error=TOO_LONG), *broken, *retried)
    _refused(server.post(path, **body), TOO_LONG.message)
    for why in (BROKEN.message, BROKEN.message, "the engine process ended with code 1"):
        failed = server.post(path, **body)
        assert failed.status_code == (200 if stream else 500)
        error = _events(failed.text)[-1] if stream else failed.json()
        assert why in _error(error)
    _check(turn, answered(server, path, body))
    assert not server.script.turns
    assert len(set(server.script.prompts)) == 1


def _error(answer: dict[str, Any]) -> str:
    message: str = answer.get("error", answer)["message"]
    return message


# ---- cases outside the recorded sessions -----------------------------------------------

SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
NOTES = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "",
    "tools": [{"type": "function", "name": "find"}, {"type": "web_search"}],
}


def test_a_conversation_that_is_kept(server: StandInServer) -> None:
    """The tools that a search has found are known in the next response; so are all items."""
    body = {"tools": [SEARCH], "input": "Find the note"}
    search = said({"name": "tool_search", "arguments": {"query": "note"}})
    server.script.begin(Turn(search), Turn(said({"name": "mcp__notes__find", "arguments": {}})))
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


def test_a_search_that_was_cut(server: StandInServer) -> None:
    cut = '<tool_call>\n{"name": "tool_search", "arguments": {"query": "no'
    server.script.begin(Turn(cut))
    answer = server.post("/v1/responses", tools=[SEARCH], input="Find").json()
    [call] = answer["output"]
    assert isinstance(call["arguments"], str)
    assert call["arguments"].startswith('{"query": "no')


def test_tools_that_come_in_the_middle(server: StandInServer) -> None:
    definition = {"name": "late", "description": "Comes late.", "input_schema": {"type": "object"}}
    tool = {"type": "tool_definition", "definition": definition}
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]},
    ]
    server.script.begin(Turn(said({"name": "late", "arguments": {}})))
    answer = server.post("/v1/messages", messages=messages, max_tokens=99).json()
    assert [block["name"] for block in answer["content"]] == ["late"]
    [prompt] = server.script.prompts
    assert "Comes late." in prompt
    assert "Tool added: late" in prompt
