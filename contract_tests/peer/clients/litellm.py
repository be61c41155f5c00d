"""LiteLLM: its OpenAI-like provider, its proxy, and its passage for Messages."""

from contract_tests.peer.request import both_ways, post

REQUESTS = [
    *both_ways("chat", "/v1/chat/completions", {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0, "stream_options": {"include_usage": True}, "user": "", "extra_body": {}}),
    *both_ways("health check", "/v1/chat/completions", {"model": "llama", "messages": [{"role": "user", "content": "Hey how's it going?"}], "max_tokens": 1, "temperature": 0}),
    *both_ways("thoughts in history", "/v1/chat/completions", {"model": "llama", "max_tokens": 8, "temperature": 0, "messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "reasoning_content": "Greet", "thinking_blocks": [{"type": "thinking", "thinking": "Greet", "signature": "a"}], "provider_specific_fields": {"refusal": None}, "function_call": None, "tool_calls": None}, {"role": "user", "content": "More"}]}),
    post("too long for the context", "/v1/chat/completions", {"model": "llama", "messages": [{"role": "user", "content": "word " * 3000}], "temperature": 0}),
    post("Messages", "/v1/messages", {"model": "llama", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]}),
    post("text completion", "/v1/completions", {"model": "llama", "prompt": "Hi", "max_tokens": 4, "temperature": 0, "echo": False, "suffix": None, "logit_bias": None}),
    post("responses bridge", "/v1/responses", {"model": "llama", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}], "type": "message"}], "max_output_tokens": 16, "temperature": 0, "store": False, "include": [], "tools": [], "tool_choice": "auto"}),
]  # fmt: skip
