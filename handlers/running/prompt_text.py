"""Prompts as text."""

from itertools import groupby

from engine.pool.client import EngineClient
from engine.protocol.messages import PromptParts
from handlers.running.media import media_marker


async def text_of(engine: EngineClient, prompt: PromptParts) -> str:
    """The texts of a prompt as they are, its tokens as text, and the marker for each medium.

    Raises EngineError (invalid_request_error) for a token that the vocabulary doesn't have.
    """
    parts: list[str] = []
    for kind, group in groupby(prompt, key=type):
        if issubclass(kind, int):
            parts.append(await engine.detokenize([part for part in group if isinstance(part, int)]))
        else:
            parts += [part if isinstance(part, str) else media_marker() for part in group]
    return "".join(parts)
