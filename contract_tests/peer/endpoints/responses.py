"""OpenAI's Responses API."""

from typing import Any

from contract_tests.peer.request import Request, both_ways, get, post

PATH = "/v1/responses"
BASE: dict[str, Any] = {
    "model": "any",
    "input": "Tell me about llamas.",
    "max_output_tokens": 16,
    "temperature": 0,
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather",
    "strict": True,
    "parameters": SCHEMA,
}


def _with(name: str, **fields: Any) -> Request:
    return post(name, PATH, {**BASE, **fields})


REQUESTS = [
    *both_ways("plain", PATH, BASE),
    *both_ways("unversioned", "/responses", BASE),
    *both_ways("instructions", PATH, {**BASE, "instructions": "Be brief."}),
    *both_ways("a tool", PATH, {**BASE, "max_output_tokens": 60, "tools": [TOOL], "tool_choice": "required"}),
    *both_ways("a schema", PATH, {**BASE, "max_output_tokens": 40, "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}),
    *both_ways("built-in tools", PATH, {**BASE, "tools": [{"type": "web_search"}, TOOL]}),
    *both_ways("too long", PATH, {**BASE, "input": "hello " * 2000}),
    _with("items", input=[{"role": "user", "content": "Hi"}]),
    _with("typed items", input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]),
    _with("a history", input=[
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]},
        {"role": "user", "content": "More"}]),
    _with("a call", tools=[TOOL], input=[
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{\"a\": 1}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}]),
    _with("a result without a call", input=[{"type": "function_call_output", "call_id": "call_1", "output": "sunny"}]),
    _with("thoughts", input=[
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "user", "content": "More"}]),
    _with("an item of a type unknown", input=[{"type": "mystery", "text": "a"}]),
    _with("a picture", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]),
    _with("no items", input=[]),
    _with("input null", input=None),
    post("without input", PATH, {"model": "any"}),
    _with("a response before", previous_response_id="resp_1"),
    _with("not stored", store=False),
    _with("in the background", background=True),
    _with("a conversation", conversation="conv_1"),
    _with("a prompt of the platform", prompt={"id": "pmpt_1"}),
    _with("reasoning", reasoning={"effort": "low", "summary": "auto"}),
    _with("include", include=["reasoning.encrypted_content"]),
    _with("truncation", truncation="auto"),
    _with("metadata", metadata={"a": "b"}, user="x", service_tier="auto", parallel_tool_calls=False, top_logprobs=0),
    _with("top_logprobs", top_logprobs=3, include=["message.output_text.logprobs"]),
    _with("only built-in tools", tools=[{"type": "web_search"}]),
    _with("a custom tool", tools=[{"type": "custom", "name": "run"}]),
    _with("local shell", tools=[{"type": "local_shell"}]),
    _with("mcp", tools=[{"type": "mcp", "server_label": "a", "server_url": "https://example.com"}]),
    _with("one output token", max_output_tokens=1),
    _with("temperature null", temperature=None, top_p=None, seed=3),
    _with("tools null", tools=None),
    _with("text verbosity", text={"format": {"type": "text"}, "verbosity": "low"}),
    post("compacted", f"{PATH}/compact", {"model": "any", "input": "Hi"}),
    post("cancelled", f"{PATH}/resp_1/cancel", {}),
    get("shown", f"{PATH}/resp_1"),
    post("conversation created", "/v1/conversations", {}),
    get("conversation shown", "/v1/conversations/conv_1"),
    get("items of a conversation", "/v1/conversations/conv_1/items"),
    _with("JSON", text={"format": {"type": "json_object"}}),
]  # fmt: skip
