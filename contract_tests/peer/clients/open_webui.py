"""Open WebUI: chats, titles, tags, and its requests for the list of models."""

from contract_tests.peer.request import both_ways, get, post

REQUESTS = [
    get("models", "/v1/models"),
    get("Ollama's tags", "/api/tags"),
    get("Ollama's version", "/api/version"),
    *both_ways("chat", "/v1/chat/completions", {
        "model": "llama", "messages": [{"role": "system", "content": "User Context:\n\n"}, {"role": "user", "content": "Hi"}],
        "stream_options": {"include_usage": True}, "max_tokens": 12, "temperature": 0, "top_k": 40, "min_p": 0.05,
        "seed": 5, "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1.1, "logit_bias": {}, "stop": []}),
    *both_ways("title", "/v1/chat/completions", {
        "model": "llama", "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title as JSON."}],
        "max_completion_tokens": 12, "temperature": 0}),
    *both_ways("tools", "/v1/chat/completions", {
        "model": "llama", "messages": [{"role": "user", "content": "Search."}], "max_tokens": 12, "temperature": 0,
        "tools": [{"type": "function", "function": {"name": "search_web", "description": "Search", "parameters": {
            "type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer", "default": 5}},
            "required": ["query"]}}}]}),
    post("a picture in history", "/v1/chat/completions", {
        "model": "llama", "max_tokens": 4, "temperature": 0, "messages": [
            {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]}),
    post("embeddings", "/v1/embeddings", {"input": ["a", "b"], "model": "m"}, stage="embedding"),
    post("rerank", "/v1/rerank", {"model": "m", "query": "a", "documents": ["b", "c"], "top_n": 2}),
]  # fmt: skip
