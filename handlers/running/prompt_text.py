"""Prompts as text, as tokens whose probabilities are reported, and in the files of
`--log-prompts-dir`."""

from collections.abc import Sequence
from itertools import groupby

from specllama.engine.errors import not_supported
from specllama.engine.models.client import EngineClient
from specllama.engine.params import GenerationParams
from specllama.engine.wire.media import Media
from specllama.engine.wire.requests import Infill, Prompt, PromptParts
from specllama.handlers.running.batch import check_prompt_probabilities
from specllama.handlers.running.media import media_marker
from specllama.handlers.running.runtime import runtime


async def text_of(engine: EngineClient, prompt: PromptParts) -> str:
    """Returns the text of a prompt: its texts, its tokens as text, and a marker for each medium.

    Raises EngineError (invalid_request_error) for a token that the vocabulary doesn't have.
    """
    parts: list[str] = []
    for kind, group in groupby(prompt, key=type):
        if issubclass(kind, int):
            parts.append(await engine.detokenize([part for part in group if isinstance(part, int)]))
        else:
            parts += [part if isinstance(part, str) else media_marker() for part in group]
    return "".join(parts)


async def prompts_with_probabilities(
    engine: EngineClient, prompts: Sequence[Prompt], params: GenerationParams, n: int
) -> list[Prompt]:
    """Returns `prompts`, with `n` texts each, as the engine's tokens.

    Raises EngineError: not_supported_error for prompts with media or gaps, invalid_request_error if
    one answer can't have the probabilities of all tokens.
    """
    found: list[Prompt] = []
    for prompt in prompts:
        if isinstance(prompt, Infill) or any(isinstance(part, Media) for part in prompt):
            raise not_supported(
                "logprobs: a prompt with images, or around a gap (suffix), has no probabilities; "
                "leave out echo or logprobs"
            )
        read = await engine.tokenize(
            prompt, add_special=True, parse_special=True, with_pieces=False
        )
        found.append([*read.tokens])
    lengths = [len(prompt) for prompt in found if not isinstance(prompt, Infill)]
    check_prompt_probabilities(lengths, params, n, engine.info.n_ctx)
    return found


def log_prompts(prompts: Sequence[Prompt]) -> None:
    """With `--log-prompts-dir`, writes each of `prompts` to a file soon. A marker stands for each
    medium."""
    if (written := runtime().prompt_log) is None:
        return
    for prompt in prompts:
        if isinstance(prompt, Infill):
            written.add(prompt)
        else:
            written.add([p if isinstance(p, int | str) else media_marker() for p in prompt])
