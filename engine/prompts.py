"""From what a request says to tokens."""

from collections.abc import Sequence

import numpy as np

from engine.backend import Model
from engine.errors import EngineError, ErrorInfo, invalid_request
from engine.tokens import TokenArray


def tokenize_prompt(model: Model, prompt: Sequence[int | str]) -> TokenArray:
    """The tokens of a sequence of token ids and texts, in the way of `protocol.Submit`.

    Raises `EngineError` if a token id is not in the vocabulary.
    """
    parts: list[TokenArray] = []
    ids: list[int] = []
    for i, element in enumerate(prompt):
        if isinstance(element, str):
            if ids:
                parts.append(check_tokens(model, ids))
                ids = []
            text = element.encode()
            parts.append(model.tokenize(text, add_special=i == 0, parse_special=True))
        else:
            ids.append(element)
    if ids:
        parts.append(check_tokens(model, ids))
    if not parts:
        return np.empty(0, np.int32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def check_tokens(model: Model, ids: Sequence[int]) -> TokenArray:
    """`ids` as an array. Raises `EngineError` if one is not in the vocabulary."""
    wide = np.array(ids, np.int64)
    wrong = np.flatnonzero((wide < 0) | (wide >= model.n_vocab))
    if len(wrong):
        raise invalid_request(
            f"token {wide[wrong[0]]} is not in the vocabulary of {model.n_vocab} tokens"
        )
    return wide.astype(np.int32)


def exceeds_context(n_tokens: int, n_ctx: int) -> EngineError:
    """The error of a prompt of `n_tokens` in a context of `n_ctx`."""
    return EngineError(
        ErrorInfo(
            type="exceed_context_size_error",
            message=f"the request has {n_tokens} tokens, the context only {n_ctx}: it is too large",
            n_prompt_tokens=n_tokens,
            n_ctx=n_ctx,
        )
    )
