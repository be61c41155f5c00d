"""The Vercel AI SDK: its OpenAI-compatible provider, Responses, and Anthropic's provider."""

from contract_tests.peer.request import both_ways, post

ZOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8, "description": "The city"}
    },
    "required": ["city"],
    "additionalProperties": False,
}
CHAT = {
    "model": "llama",
    "max_tokens": 60,
    "temperature": 0,
    "messages": [{"role": "user", "content": "The weather in Lima?"}],
}
REQUESTS = [
    *both_ways("text", "/v1/chat/completions", {**CHAT, "max_tokens": 8}),
    *both_ways("with usage", "/v1/chat/completions", {**CHAT, "max_tokens": 8, "stream_options": {"include_usage": True}}),
    *both_ways("a tool", "/v1/chat/completions", {**CHAT, "max_tokens": 12, "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": ZOD}}], "tool_choice": "auto"}),
    *both_ways("an object", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": ZOD, "strict": True, "name": "response", "description": "A city"}}}),
    *both_ways("an enum", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"result": {"type": "string", "enum": ["sun", "rain"]}}, "required": ["result"], "additionalProperties": False}, "strict": False, "name": "response"}}}),
    *both_ways("responses", "/v1/responses", {"model": "llama", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "temperature": 0, "max_output_tokens": 16}),
    *both_ways("responses with a tool", "/v1/responses", {"model": "llama", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "temperature": 0, "max_output_tokens": 16, "tools": [{"type": "function", "name": "weather", "description": "The weather", "parameters": ZOD, "strict": False}], "tool_choice": "auto"}),
    *both_ways("messages", "/v1/messages", {"model": "llama", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools": [{"name": "weather", "description": "The weather", "input_schema": ZOD}], "tool_choice": {"type": "auto"}}),
    post("a result as an assistant's turn", "/v1/chat/completions", {**CHAT, "max_tokens": 8, "messages": [
        {"role": "user", "content": "Lima?"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Lima\"}"}}]}, {"role": "tool", "tool_call_id": "c1", "content": "{\"degrees\":20}"}]}),
]  # fmt: skip
