"""Continue: chats, completions at the cursor, and its llama.cpp provider."""

from contract_tests.peer.request import both_ways, post

REQUESTS = [
    *both_ways("llama.cpp provider", "/completion", {
        "prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "n_predict": 12,
        "frequency_penalty": 0, "presence_penalty": 0, "min_p": 0.05, "mirostat": 0, "stop": ["<|im_end|>"],
        "top_k": 40, "top_p": 0.9, "temperature": 0}),
    *both_ways("chat", "/v1/chat/completions", {
        "messages": [{"role": "system", "content": "You are in agent mode."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "model": "AUTODETECT", "max_tokens": 12, "temperature": 0, "stream_options": {"include_usage": True}}),
    *both_ways("agent", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Read the file."}], "model": "llama", "max_tokens": 12,
        "temperature": 0, "parallel_tool_calls": False,
        "tools": [
            {"type": "function", "function": {"name": "read_file", "description": "Reads a file",
             "parameters": {"type": "object", "required": ["filepath"], "properties": {"filepath": {"type": "string", "description": "The path"}}}}},
            {"type": "function", "function": {"name": "view_diff", "description": "The diff", "parameters": {"type": "object", "properties": {}}}},
        ]}),
    *both_ways("autocomplete by chat API", "/v1/completions", {
        "prompt": "<|fim_prefix|>def add(a, b):\n<|fim_suffix|>\n<|fim_middle|>", "model": "qwen", "max_tokens": 12,
        "temperature": 0, "stop": ["<|endoftext|>", "<|fim_prefix|>", "\n\n", "/src/", "#- coding: utf-8"]}),
    post("fim", "/v1/fim/completions", {"model": "a", "prompt": "def", "suffix": "", "max_tokens": 4, "temperature": 0}),
]  # fmt: skip
