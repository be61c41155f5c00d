"""llama.vscode: completions, chats with context, its agent."""

from contract_tests.peer.request import both_ways, get, post

FILL = {
    "input_prefix": "function add(a, b) {\n", "input_suffix": "}\n",
    "input_extra": [{"text": "const a = 1;\n", "filename": "a.js"}], "prompt": "  return ",
    "n_predict": 16, "top_k": 40, "top_p": 0.99, "stream": False, "n_indent": 2, "stop": ["\n\n\n"],
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 0,
    "t_max_predict_ms": 1000000, "temperature": 0,
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_terminal_command",
            "description": "Runs a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The command"}},
                "required": ["command"],
            },
            "strict": True,
        },
    }
]
REQUESTS = [
    get("health", "/health"),
    get("models", "/v1/models"),
    post("fill in", "/infill", FILL),
    post("prepare", "/infill", {**FILL, "n_predict": 0, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "prompt": ""}),
    *both_ways("edit", "/v1/chat/completions", {
        "messages": [{"role": "system", "content": "You edit code."}, {"role": "user", "content": "Rename a to b."}],
        "n_predict": 12, "temperature": 0, "top_k": 40, "top_p": 0.95, "samplers": ["edkypmxt"[2]], "cache_prompt": True}),
    *both_ways("agent", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "List the files."}], "stream": False,
        "temperature": 0, "top_p": 0.95, "max_tokens": 12, "tools": TOOLS, "tool_choice": "auto"}),
    post("embeddings", "/v1/embeddings", {"input": "const a", "model": "GPT-4", "encoding_format": "float"}, stage="embedding"),
]  # fmt: skip
