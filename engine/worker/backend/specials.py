"""The special tokens of a vocabulary, as llama.cpp looks for them in texts."""

from typing import Any

from llama_cpp import llama_cpp as C

from specllama.engine.worker.backend.slices import Special

_PARSED = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
_SPECIAL = _PARSED | C.LLAMA_TOKEN_ATTR_USER_DEFINED
_STRIPS = C.LLAMA_TOKEN_ATTR_LSTRIP | C.LLAMA_TOKEN_ATTR_RSTRIP


def specials(vocab: Any, n_vocab: int) -> list[Special]:
    """All of them; `vocab` is a `llama_vocab` of `n_vocab` tokens."""
    found: list[Special] = []
    for token in range(n_vocab):
        attributes = C.llama_vocab_get_attr(vocab, token)
        if attributes & _SPECIAL:
            text = C.llama_vocab_get_text(vocab, token) or b""
            strips, plain = attributes & _STRIPS != 0, attributes & _PARSED == 0
            found.append(Special(text, strips=strips, plain=plain))
    return found
