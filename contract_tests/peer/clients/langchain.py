"""LangChain: ChatOpenAI with tools and structured output, completions, embeddings by tokens."""

from contract_tests.peer.request import both_ways, post

CHAT = {
    "messages": [{"content": "Be brief.", "role": "system"}, {"content": "Hi", "role": "user"}],
    "model": "gpt-3.5-turbo",
    "temperature": 0,
    "max_completion_tokens": 12,
}
SCHEMA = {
    "properties": {
        "setup": {"description": "The setup", "type": "string", "maxLength": 6},
        "rating": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    },
    "required": ["setup"],
    "type": "object",
}
REQUESTS = [
    *both_ways("chat", "/v1/chat/completions", {**CHAT, "n": 1}),
    *both_ways("bound tools", "/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "multiply", "description": "Multiply", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"], "type": "object"}}}]}),
    *both_ways("structured by a tool", "/v1/chat/completions", {**CHAT, "max_completion_tokens": 80, "tools": [{"type": "function", "function": {"name": "Joke", "description": "A joke", "parameters": SCHEMA}}], "tool_choice": {"type": "function", "function": {"name": "Joke"}}, "parallel_tool_calls": False}),
    *both_ways("structured by a schema", "/v1/chat/completions", {**CHAT, "max_completion_tokens": 80, "response_format": {"type": "json_schema", "json_schema": {"name": "Joke", "description": "A joke", "schema": {**SCHEMA, "additionalProperties": False, "required": ["setup", "rating"]}, "strict": True}}}),
    *both_ways("completion", "/v1/completions", {"model": "gpt-3.5-turbo-instruct", "prompt": ["Hi"], "temperature": 0, "max_tokens": 8, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1, "best_of": 1, "logprobs": None, "seed": None}),
    post("a history of tools", "/v1/chat/completions", {**CHAT, "messages": [
        {"role": "user", "content": "2 * 3?"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "call_9", "function": {"name": "multiply", "arguments": "{\"a\": 2, \"b\": 3}"}}]},
        {"role": "tool", "tool_call_id": "call_9", "content": "6"}]}),
    post("embeddings of tokens", "/v1/embeddings", {"input": [[5, 6, 7], [8, 9]], "model": "text-embedding-ada-002", "encoding_format": "base64"}, stage="embedding"),
    post("embeddings of texts", "/v1/embeddings", {"input": ["a"], "model": "text-embedding-3-small", "encoding_format": "base64"}, stage="embedding"),
]  # fmt: skip
