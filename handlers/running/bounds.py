"""Bounds of what one answer may have all in all, where each field alone is in order."""

import logging
from collections.abc import Sequence

import msgspec

from specllama.engine.errors import invalid_request
from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Infill, Prompt

log = logging.getLogger(__name__)

MAX_PROBABILITIES = 1 << 18
"""Probabilities that are kept for one answer, which has some 400 bytes for each at its end."""
MAX_REPEATED = 64 << 20
"""Bytes that all texts of one request have of the same: parameters, and prompts in the answer."""
BYTES_PER_TOKEN = 4  # of a prompt, more or less
CONTEXTS = 4  # a text without a limit has no more, unless --max-predict says otherwise


def bound_probabilities(params: GenerationParams, n_texts: int, n_ctx: int) -> GenerationParams:
    """`params` for `n_texts` texts whose probabilities are kept until the end of the answer. A text
    without a limit ends where there would be too many of them.

    Raises EngineError (invalid_request_error) if as many texts, probabilities and tokens as are
    asked for are too many together.
    """
    n_probs, n_predict = params.n_probs, params.n_predict
    if not n_probs:
        return params
    room = MAX_PROBABILITIES // (n_texts * n_probs)
    if room < (1 if n_predict < 0 else min(n_predict, n_ctx)):
        tokens = f"{n_predict} tokens (n_predict)" if n_predict >= 0 else "a token"
        raise invalid_request(
            f"n_probs: {n_probs} probabilities for {tokens} of each of {n_texts} texts "
            f"(n_cmpl) are more than the {MAX_PROBABILITIES} that an answer can have: ask for "
            "less, or for a stream"
        )
    if n_predict > room or (n_predict < 0 and room < CONTEXTS * n_ctx):
        log.info("n_probs: texts end after %d tokens, to bound the probabilities", room)
        return msgspec.structs.replace(params, n_predict=room)
    return params


def check_prompt_probabilities(
    lengths: Sequence[int], params: GenerationParams, n: int, n_ctx: int
) -> None:
    """Raises EngineError (invalid_request_error) if prompts of `lengths` tokens, with `n` texts
    each, have more probabilities than one answer can have."""
    n_tokens = n * sum(min(length, n_ctx) for length in lengths)  # a longer one is another error
    if n_tokens * params.n_probs > MAX_PROBABILITIES:
        raise invalid_request(
            f"logprobs: {params.n_probs} probabilities for each of {n_tokens} tokens of prompts "
            f"(echo) are more than the {MAX_PROBABILITIES} that an answer can have: ask for less, "
            "or send several requests"
        )


def check_repeated(
    prompts: Sequence[Prompt], params: GenerationParams, n: int, n_ctx: int, *, echo_prompt: bool
) -> None:
    """Raises EngineError (invalid_request_error) if `n` texts for each of `prompts` have too much
    in common: what may be as long as a body is kept, and answered, for each of them."""
    n_texts = n * len(prompts)
    if n_texts == 1:
        return
    size = n_texts * len(msgspec.msgpack.encode(params))
    if echo_prompt:
        longest = BYTES_PER_TOKEN * n_ctx  # a prompt that doesn't fit is another error
        size += n * sum(min(_length(prompt), longest) for prompt in prompts)
    if size > MAX_REPEATED:
        raise invalid_request(
            f"n_cmpl: {n_texts} texts have {size} bytes of prompts, grammars, biases, "
            f"stop strings and other parameters, more than {MAX_REPEATED}: ask for fewer texts"
        )


def _length(prompt: Prompt) -> int:
    if isinstance(prompt, Infill):
        return BYTES_PER_TOKEN * (len(prompt.prefix) + len(prompt.suffix)) + sum(
            len(part) for part in (*prompt.prefix, *prompt.suffix) if isinstance(part, str)
        )
    return sum(len(part) if isinstance(part, str) else BYTES_PER_TOKEN for part in prompt)
