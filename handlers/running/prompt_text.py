"""Prompts as text."""

from collections.abc import Sequence
from itertools import groupby

from engine.pool.client import EngineClient


async def text_of(engine: EngineClient, prompt: Sequence[int | str]) -> str:
    """The texts of a prompt as they are, and its tokens as text.

    Raises EngineError (invalid_request_error) for a token that the vocabulary doesn't have.
    """
    parts: list[str] = []
    for is_text, group in groupby(prompt, key=lambda part: isinstance(part, str)):
        if is_text:
            parts += [part for part in group if isinstance(part, str)]
        else:
            parts.append(await engine.detokenize([part for part in group if isinstance(part, int)]))
    return "".join(parts)
