"""Counts what requests cost in tokens, for every API alike."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from specllama.engine.wire.replies import Timings, Vectors
from specllama.handlers.http.notes import Notes, notes


def note_texts(noted: Notes, timings: Sequence[Timings | None], n: int) -> None:
    """The last that was heard of a call's generations, `n` of them for each prompt: those share
    the prompt, which counts once."""
    steps, ms = 0, 0.0
    for index, each in enumerate(timings):
        if each is None:
            continue
        if index % n == 0:
            noted.n_prompt += each.cache_n + each.prompt_n
            noted.n_cached += each.cache_n
        noted.n_predicted += each.predicted_n
        # The first token comes with the prompt; the generations run beside each other.
        steps += max(each.predicted_n - 1, 0)
        ms = max(ms, each.predicted_ms)
    if ms > 0:
        noted.predicted_per_second = 1000 * steps / ms


async def counted(work: AsyncGenerator[Vectors, None]) -> AsyncGenerator[Vectors, None]:
    """`work`, which is closed together with this, and its tokens noted."""
    noted = notes()
    async with aclosing(work):
        async for vectors in work:
            noted.n_prompt += vectors.n_tokens
            yield vectors
