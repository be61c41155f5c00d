"""OpenAI's chat completions: messages, tools, formats, edges."""

from typing import Any

from contract_tests.peer.request import SMALL, USER, Request, both_ways, post

PATH = "/v1/chat/completions"
BASE: dict[str, Any] = {"model": "any", "messages": USER, **SMALL}
OBJECT = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather", "parameters": OBJECT},
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Lima"}'},
}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _with(name: str, **fields: Any) -> Request:
    return post(name, PATH, {**BASE, **fields})


def _said(name: str, *messages: Any, **fields: Any) -> Request:
    return _with(name, messages=list(messages), **fields)


REQUESTS = [
    *both_ways("plain", PATH, BASE),
    *both_ways("unversioned", "/chat/completions", BASE),
    *both_ways("with usage", PATH, {**BASE, "stream_options": {"include_usage": True}}),
    *both_ways("with probabilities", PATH, {**BASE, "logprobs": True, "top_logprobs": 2}),
    *both_ways("probabilities alone", PATH, {**BASE, "logprobs": True}),
    *both_ways("several", PATH, {**BASE, "n": 2}),
    *both_ways("stopped", PATH, {**BASE, "max_tokens": 60, "stop": ["a"]}),
    *both_ways("max_completion_tokens", PATH, {"messages": USER, "max_completion_tokens": 5, "temperature": 0}),
    *both_ways("timings", PATH, {**BASE, "timings_per_token": True}),
    *both_ways("progress", PATH, {**BASE, "return_progress": True, "cache_prompt": False}),
    *both_ways("a schema", PATH, {**BASE, "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": OBJECT}}}),
    *both_ways("thoughts and a schema", PATH, {**BASE, "max_tokens": 40, "response_format": SCHEMA, "chat_template_kwargs": {"enable_thinking": True}}),
    *both_ways("JSON", PATH, {**BASE, "max_tokens": 20, "response_format": {"type": "json_object"}}),
    *both_ways("a tool, required", PATH, {**BASE, "max_tokens": 60, "tools": [TOOL], "tool_choice": "required"}),
    *both_ways("a tool, auto", PATH, {**BASE, "tools": [TOOL], "tool_choice": "auto"}),
    *both_ways("a tool, none", PATH, {**BASE, "tools": [TOOL], "tool_choice": "none"}),
    *both_ways("a tool by name", PATH, {**BASE, "max_tokens": 60, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    *both_ways("tools in parallel", PATH, {**BASE, "max_tokens": 60, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}),
    *both_ways("too long", PATH, {**BASE, "messages": [{"role": "user", "content": "hello " * 2000}]}),
    _with("JSON with a schema beside", response_format={"type": "json_object", "schema": OBJECT}),
    _with("text", response_format={"type": "text"}),
    _with("unknown format", response_format={"type": "yaml"}),
    _with("format null", response_format=None),
    _with("format without schema", response_format={"type": "json_schema"}),
    _with("grammar", grammar='root ::= "yes" | "no"'),
    _with("bad grammar", grammar="root ::= ("),
    _with("grammar and tools", grammar='root ::= "a"', tools=[TOOL]),
    _with("json_schema", json_schema=OBJECT, max_tokens=40),
    _with("tools empty", tools=[]),
    _with("tools null", tools=None, tool_choice=None),
    _with("tool of a type unknown", tools=[{"type": "web_search"}]),
    _with("tool without function", tools=[{"type": "function"}]),
    _with("tool without parameters", tools=[{"type": "function", "function": {"name": "now"}}]),
    _with("tool without name", tools=[{"type": "function", "function": {"parameters": OBJECT}}]),
    _with("tools no list", tools={"a": 1}),
    _with("tool choice unknown", tools=[TOOL], tool_choice="maybe"),
    _with("tool choice of another", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "other"}}),
    _with("required without tools", tool_choice="required"),
    _with("functions", functions=[TOOL["function"]], function_call="auto"),
    _with("n too many", n=3),
    _with("n 0", n=0),
    _with("n null", n=None),
    _with("max_tokens null", max_tokens=None, max_completion_tokens=4),
    _with("max_tokens -1", max_tokens=-1, stop=["a", "e"]),
    _with("max_tokens 0", max_tokens=0),
    _with("max_tokens of a wrong type", max_tokens="8"),
    _with("top_logprobs without logprobs", top_logprobs=2),
    _with("top_logprobs too many", logprobs=True, top_logprobs=50),
    _with("top_logprobs below", logprobs=True, top_logprobs=-1),
    _with("temperature 2.5", temperature=2.5, seed=3),
    _with("top_p 1.5", top_p=1.5),
    _with("presence_penalty 5", presence_penalty=5),
    _with("seed huge", seed=2**40),
    _with("logit_bias", logit_bias={"5": -100}),
    _with("stop null", stop=None),
    _with("stop of many", stop=["x"] * 10),
    _with("user, store, metadata", user="a", store=False, metadata={"a": "b"}, service_tier="auto", safety_identifier="x", prompt_cache_key="y"),
    _with("modalities", modalities=["text"]),
    _with("audio wanted", modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}),
    _with("reasoning_effort", reasoning_effort="low"),
    _with("reasoning_effort none", reasoning_effort="none"),
    _with("reasoning_format none", reasoning_format="none"),
    _with("reasoning_format wrong", reasoning_format="wrong"),
    _with("thinking switched off", chat_template_kwargs={"enable_thinking": False}),
    _with("template arguments of a wrong type", chat_template_kwargs=5),
    _with("prediction", prediction={"type": "content", "content": "a"}),
    _with("web_search_options", web_search_options={}),
    _with("stream null", stream=None),
    _with("stream options without a stream", stream_options={"include_usage": True}),
    _with("verbosity", verbosity="low"),
    _with("no generation prompt", add_generation_prompt=False),
    _with("id_slot", id_slot=1),
    _with("verbose", verbose=True),
    _with("return tokens", return_tokens=True),
    _with("samplers", samplers=["top_k", "temperature"]),
    _with("messages null", messages=None),
    _with("messages text", messages="Hi"),
    post("without messages", PATH, SMALL),
    _said("no messages"),
    _said("a message without role", {"content": "Hi"}),
    _said("a message without content", {"role": "user"}),
    _said("content null", {"role": "user", "content": None}),
    _said("content a number", {"role": "user", "content": 5}),
    _said("content empty", {"role": "user", "content": ""}),
    _said("no message", 5),
    _said("a role unknown", {"role": "narrator", "content": "Hi"}),
    _said("a developer", {"role": "developer", "content": "Be brief."}, *USER),
    _said("a system late", *USER, {"role": "system", "content": "Be brief."}),
    _said("two users", *USER, *USER),
    _said("a name", {"role": "user", "name": "Ann", "content": "Hi"}),
    _said("a prefill", *USER, {"role": "assistant", "content": "Llamas are"}),
    _said("a prefill of parts", *USER, {"role": "assistant", "content": [{"type": "text", "text": "Llamas are"}]}),
    *(
        _said(
            f"a prefill of {name}", *USER, {"role": "assistant", "content": begun},
            response_format=SCHEMA, chat_template_kwargs={"enable_thinking": False},
        )
        for name, begun in (("JSON", '{"city": "Li'), ("whole JSON", '{"city": "Lima"}'), ("other JSON", "Yes"))
    ),
    _said("two prefills", *USER, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}),
    _said("parts", {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}),
    _said("parts none", {"role": "user", "content": []}),
    _said("a part of a type unknown", {"role": "user", "content": [{"type": "note", "text": "Hi"}]}),
    _said("a part without type", {"role": "user", "content": [{"text": "Hi"}]}),
    _said("a picture", {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}),
    _said("a sound", {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}),
    _said("a file", {"role": "user", "content": [{"type": "file", "file": {"file_id": "a"}}]}),
    _said("a call and its result", *USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}, tools=[TOOL]),
    _said("a result without a call", *USER, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}),
    _said("a call with bad arguments", *USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": "{"}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}),
    _said("a call with arguments as an object", *USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": {"city": "Lima"}}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}),
    _said("a result of parts", *USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}),
    _said("a call last", *USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}),
    _said("thoughts", *USER, {"role": "assistant", "content": "A", "reasoning_content": "B"}, *USER),
    _said("a refusal", *USER, {"role": "assistant", "content": None, "refusal": "No."}, *USER),
]  # fmt: skip
