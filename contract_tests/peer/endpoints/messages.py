"""Anthropic's Messages API."""

from typing import Any

from contract_tests.peer.request import USER, Request, both_ways, post

PATH = "/v1/messages"
BASE: dict[str, Any] = {"model": "any", "messages": USER, "max_tokens": 8, "temperature": 0}
TOOL = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
    },
}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lima"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}


def _with(name: str, **fields: Any) -> Request:
    return post(name, PATH, {**BASE, **fields}, headers={"anthropic-version": "2023-06-01"})


REQUESTS = [
    *both_ways("plain", PATH, BASE),
    *both_ways("a system", PATH, {**BASE, "system": "Be brief."}),
    *both_ways("a system of blocks", PATH, {**BASE, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}),
    *both_ways("stopped", PATH, {**BASE, "max_tokens": 60, "stop_sequences": ["a"]}),
    *both_ways("a tool", PATH, {**BASE, "max_tokens": 60, "tools": [TOOL], "tool_choice": {"type": "any"}}),
    *both_ways("a tool, auto", PATH, {**BASE, "tools": [TOOL], "tool_choice": {"type": "auto"}}),
    *both_ways("thinking", PATH, {**BASE, "max_tokens": 2000, "stop_sequences": ["a"], "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    *both_ways("too long", PATH, {**BASE, "messages": [{"role": "user", "content": "hello " * 2000}]}),
    _with("a tool by name", max_tokens=60, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}),
    _with("a tool, none", tools=[TOOL], tool_choice={"type": "none"}),
    _with("built-in tools", tools=[{"type": "web_search_20250305", "name": "web_search"}, TOOL]),
    _with("only built-in tools", tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    _with("a call and its result", tools=[TOOL], messages=[*USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]),
    _with("a result of blocks", tools=[TOOL], messages=[*USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [{**RESULT, "content": [{"type": "text", "text": "sunny"}]}]}]),
    _with("a result without a call", messages=[{"role": "user", "content": [RESULT]}]),
    _with("thoughts before", messages=[*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "text", "text": "A"}]}, *USER]),
    _with("a prefill", messages=[*USER, {"role": "assistant", "content": "Llamas"}]),
    _with("blocks", messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]),
    _with("a block unknown", messages=[{"role": "user", "content": [{"type": "mystery", "text": "Hi"}]}]),
    _with("a picture", messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]}]),
    _with("a document", messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hi"}}]}]),
    _with("a role unknown", messages=[{"role": "system", "content": "Hi"}, *USER]),
    _with("no messages", messages=[]),
    _with("messages null", messages=None),
    post("without messages", PATH, {"model": "any", "max_tokens": 4}),
    post("without max_tokens", PATH, {"model": "any", "messages": USER, "temperature": 0, "stop_sequences": ["a", "e"]}),
    post("without model", PATH, {"messages": USER, "max_tokens": 4, "temperature": 0}),
    _with("max_tokens 0", max_tokens=0),
    _with("metadata", metadata={"user_id": "a"}, service_tier="auto", top_k=5, top_p=0.9),
    _with("temperature 2", temperature=2),
    _with("content number", messages=[{"role": "user", "content": 5}]),
    _with("a container", container="container_1"),
    _with("output_config", output_config={"effort": "low"}),
]  # fmt: skip
