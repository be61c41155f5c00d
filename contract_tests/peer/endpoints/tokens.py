"""Tokenizing, detokenizing, counting, templates."""

from contract_tests.peer.request import USER, post

_TOOL = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
}
REQUESTS = [
    *(post(f"tokenize {name}", "/tokenize", body) for name, body in {
        "a text": {"content": "Hello world"},
        "nothing": {"content": ""},
        "without content": {},
        "null": {"content": None},
        "a number": {"content": 5},
        "a list": {"content": ["Hello", " world"]},
        "a mixed list": {"content": ["Hello", 5, 6]},
        "tokens": {"content": [5, 6, 7]},
        "an object": {"content": {"a": 1}},
        "with BOS": {"content": "Hello", "add_special": True},
        "special, not parsed": {"content": "<|im_start|>", "parse_special": False},
        "special, parsed": {"content": "<|im_start|></s>", "parse_special": True},
        "with pieces": {"content": "Hello \U0001f999 é", "with_pieces": True},
        "a flag of a wrong type": {"content": "Hello", "add_special": "yes"},
        "a NUL": {"content": "a\u0000b"},
    }.items()),
    *(post(f"detokenize {name}", "/detokenize", body) for name, body in {
        "tokens": {"tokens": [5, 6, 7]},
        "none": {"tokens": []},
        "without tokens": {},
        "null": {"tokens": None},
        "a negative token": {"tokens": [-1]},
        "a token beyond": {"tokens": [99999999]},
        "texts": {"tokens": ["a"]},
        "a number": {"tokens": 5},
        "fractions": {"tokens": [5.0]},
        "BOS": {"tokens": [1, 5]},
    }.items()),
    *(post(f"template {name}", "/apply-template", body) for name, body in {
        "of a chat": {"messages": USER},
        "without messages": {},
        "of no messages": {"messages": []},
        "of parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        "of a system": {"messages": [{"role": "system", "content": "Be brief."}, *USER]},
        "of a developer": {"messages": [{"role": "developer", "content": "Be brief."}, *USER]},
        "with tools": {"messages": USER, "tools": [_TOOL]},
        "with arguments": {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}},
        "with no generation prompt": {"messages": USER, "add_generation_prompt": False},
        "of a prefill": {"messages": [*USER, {"role": "assistant", "content": "Llamas"}]},
    }.items()),
    *(post(f"count {path} {name}", path, body)
      for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
      for name, body in {
          "a chat": {"messages": USER, "model": "any"},
          "with tools": {"messages": USER, "tools": [_TOOL]},
          "nothing": {},
          "no messages": {"messages": []},
      }.items()),
    post("count a response", "/v1/responses/input_tokens", {"input": "Hi", "model": "any"}),
    post("count a response of items", "/responses/input_tokens", {"input": USER}),
    post("count a response without input", "/v1/responses/input_tokens", {}),
    post("count a message", "/v1/messages/count_tokens", {"messages": USER, "model": "any"}),
    post("count a message with a system", "/v1/messages/count_tokens", {
        "messages": USER, "model": "any", "system": [{"type": "text", "text": "Be brief."}]}),
    post("count a message with tools", "/v1/messages/count_tokens", {
        "messages": USER, "model": "any",
        "tools": [{"name": "now", "description": "The time", "input_schema": {"type": "object"}}]}),
    post("count a message without", "/v1/messages/count_tokens", {"model": "any"}),
]  # fmt: skip
