"""What Ollama's clients want embedded."""

from collections.abc import Sequence

from specllama.engine.models.client import EngineClient
from specllama.engine.wire.requests import PromptParts

AROUND = 8  # more special tokens than any model has around a text


async def shortened(engine: EngineClient, text: str) -> PromptParts:
    """`text`, or as many of its first tokens as the model can embed, with the special ones that the
    model wants at the end."""
    n_input = engine.info.n_input
    if 2 * len(text.encode()) + AROUND <= n_input:
        return [text]  # surely: a token has a byte or more, even if the tokenizer adds spaces
    whole = await _tokens(engine, text, add_special=True)
    if len(whole) <= n_input:
        return [text]
    n_end = _n_behind(await _tokens(engine, text, add_special=False), whole)
    return [*whole[: n_input - n_end], *whole[len(whole) - n_end :]]


async def _tokens(engine: EngineClient, text: str, *, add_special: bool) -> list[int]:
    found = await engine.tokenize(
        [text], add_special=add_special, parse_special=True, with_pieces=False
    )
    return list(found.tokens)


def _n_behind(plain: Sequence[int], whole: Sequence[int]) -> int:
    """The number of special tokens behind the `plain` ones in the `whole`."""
    n_special = len(whole) - len(plain)
    for n_before in range(n_special + 1):
        if list(whole[n_before : n_before + len(plain)]) == list(plain):
            return n_special - n_before
    return 0
