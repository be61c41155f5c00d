"""Embeddings and ranks, of a server that was started for them."""

from contract_tests.peer.request import post

_ASK: dict[str, object] = {
    "a text": {"input": "A llama."}, "texts": {"input": ["A llama.", "The bus."]},
    "tokens": {"input": [5, 6, 7]}, "lists of tokens": {"input": [[5, 6], [7]]},
    "mixed": {"input": ["A llama.", [5, 6]]}, "nothing": {"input": ""}, "no texts": {"input": []},
    "no input": {}, "a number": {"input": 5}, "content": {"content": "A llama."},
    "base64": {"input": "A llama.", "encoding_format": "base64"},
    "floats": {"input": "A llama.", "encoding_format": "float", "model": "any"},
    "unknown encoding": {"input": "A llama.", "encoding_format": "hex"},
    "dimensions": {"input": "A llama.", "dimensions": 8},
    "not normalised": {"input": "A llama.", "embd_normalize": -1},
    "too long": {"input": "hello " * 3000}, "null": {"input": None},
}  # fmt: skip
REQUESTS = [
    *(post(f"{path} {name}", path, body, stage="embedding")
      for path in ("/v1/embeddings", "/embedding", "/embeddings") for name, body in _ASK.items()),
    post("ranks, switched off", "/rerank", {"query": "a", "documents": ["b"]}, stage="embedding"),
    post("a completion of embeddings", "/completion", {"prompt": "a"}, stage="embedding"),
    post("a chat of embeddings", "/v1/chat/completions", {"messages": []}, stage="embedding"),
]  # fmt: skip
