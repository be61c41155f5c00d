"""OpenAI's older form of `logprobs`: lists over all tokens of a text, that of its prompt in front.

Only completions that repeat their prompt have it, beside `content`, which tells of the generated
tokens alone.
"""

import codecs
import math
from collections.abc import Sequence
from typing import Any

from specllama.engine.wire.replies import Delta, Finished, TokenProbs
from specllama.handlers.apis.native.probabilities import Probabilities
from specllama.handlers.http.json_answer import Lazy

_LEAST = 5e-324  # of a probability that has a logarithm


class TextLogprobs:
    """The lists of one choice, whose text begins with `echo`, as its events come."""

    def __init__(self, probabilities: Probabilities, echo: str) -> None:
        self._probabilities = probabilities
        self._echo = echo
        self._n_text = 0  # characters of the tokens so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, source: Delta | Finished) -> dict[str, Any]:
        """The object for what `source` carries: the prompt, if it is the first, and new tokens.

        A token's text is what it adds to the whole characters, so that all of them make the text.
        What a tokenizer has put in front of a text is no part of it.
        """
        prompt, new = source.prompt_probs, source.probs
        post_sampling = self._probabilities.post_sampling
        texts = [self._decoder.decode(entry.piece) for entry in prompt]
        if prompt:
            said = "".join(texts)
            if said.endswith(self._echo):
                texts = _without(texts, len(said) - len(self._echo))
        texts += [self._decoder.decode(entry.piece) for entry in new]
        offsets: list[int] = []
        for text in texts:
            offsets.append(self._n_text)
            self._n_text += len(text)
        first = min(1, len(prompt))  # nothing stands before it
        values = [None] * first + [entry.value for entry in prompt[first:]]
        values += [_log(entry.value) if post_sampling else entry.value for entry in new]
        rivals: list[tuple[TokenProbs, bool] | None] = [None] * first
        rivals += [(entry, False) for entry in prompt[first:]]
        rivals += [(entry, post_sampling) for entry in new]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": Lazy(self._top, rivals, 1 + self._probabilities.n_top),
            "text_offset": offsets,
            "content": self._probabilities.later(new),
        }

    def _top(self, each: tuple[TokenProbs, bool] | None) -> dict[str, float] | None:
        """The rivals, and the token itself: of two with the same text the likelier one."""
        if each is None:
            return None
        entry, post_sampling = each
        found: dict[str, float] = {}
        for _, piece, value in entry.top[: self._probabilities.n_top]:
            found.setdefault(_name(piece), _log(value) if post_sampling else value)
        found.setdefault(_name(entry.piece), _log(entry.value) if post_sampling else entry.value)
        return found


def _name(piece: bytes) -> str:
    """The text of a token; its bytes, as OpenAI writes them, if it is no text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _without(texts: Sequence[str], n: int) -> list[str]:
    """`texts` without their first `n` characters."""
    left: list[str] = []
    for text in texts:
        left.append(text[n:])
        n = max(0, n - len(text))
    return left


def _log(probability: float) -> float:
    return math.log(max(probability, _LEAST))
