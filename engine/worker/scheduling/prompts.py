"""How a step is divided among prompts."""

import math
from collections.abc import Sequence as SequenceOf

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from specllama.engine.worker.scheduling.step_cost import FEW_ROWS

LITTLE_MORE = 1.25
"""Beside generating sequences, a step may have this many times as many tokens of a prompt as it
should if that spares one with the rest: few rows of a long text can take longer than many (see
`engine.worker.scheduling.step_cost.FEW_ROWS`)."""
LAST_STEPS = 3
"""So many steps share the rest of a prompt evenly."""


class Sharing:
    """Plans the chunks of prompts, step after step."""

    def __init__(self, cache: PrefixCache, *, n_batch: int, unified: bool) -> None:
        self._cache = cache
        self._n_batch = n_batch
        self._unified = unified
        self._n_steps = 0  # that prompts had a part of

    def plan(
        self, prompts: SequenceOf[Sequence], n_ready: int, n_prompt: int, n_burst: int
    ) -> list[Chunk]:
        """Chunks of `prompts`, the one admitted first in front, beside one token of each of
        `n_ready` generating sequences. `n_prompt` and `n_burst` are those of `Scheduler.plan`."""
        self._n_steps += 1
        prompts = with_one_read(prompts)
        everyone, prompts = prompts, with_one_medium(prompts, self._n_steps)
        if (whole := next((s for s in prompts if _is_whole(s)), None)) is not None:
            n = n_ready + whole.n_next
            if self._cache.make_room(n) >= n:
                return [_chunk(whole, whole.n_next)]
            prompts = [s for s in everyone if s.span is None]  # until there are cells for it
            if not prompts:
                return []
        chunks: list[Chunk] = []
        n_pending = sum(s.n_next for s in prompts)
        if n_prompt < n_pending <= n_burst and not any(s.is_cut for s in prompts):
            n_prompt = n_burst
        elif n_ready:
            n_prompt = evenly(n_pending, n_prompt)
        wanted = min(n_prompt, self._n_batch - n_ready, n_pending)
        room = self._cache.make_room(n_ready + wanted) - n_ready
        least = FEW_ROWS + 1 if n_ready and not self._unified else 1
        for sequence, n in shares(prompts, min(wanted, room), least=least, turn=self._n_steps):
            chunks.append(_chunk(sequence, min(n, sequence.n_to_checkpoint)))
        return chunks


def _chunk(sequence: Sequence, n: int) -> Chunk:
    sequence.is_cut = n < sequence.n_pending
    return Chunk(sequence, sequence.n_past, sequence.n_past + n, span=sequence.span)


def _is_whole(sequence: Sequence) -> bool:
    """True if it goes on with a span that is evaluated at once, however long it is."""
    return sequence.span is not None and sequence.span.is_whole


def with_one_read(prompts: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
    """`prompts`, with the first one alone of those whose logits are all wanted: each has as many
    rows in a step as there is memory for."""
    read = [s for s in prompts if s.wants_outputs]
    return prompts if len(read) < 2 else [s for s in prompts if s is read[0] or s not in read]


def with_one_medium(prompts: SequenceOf[Sequence], turn: int) -> SequenceOf[Sequence]:
    """Those of `prompts` that the step of this `turn` has a part of: one at the most that goes on
    with a span, as each takes a decode of its own.

    That is the first one, or in every second turn the one that needs the fewest tokens. Where its
    span has to be whole, it takes turns with those that go on with tokens.
    """
    texts = [s for s in prompts if s.span is None]
    if len(texts) == len(prompts):
        return prompts
    media = [s for s in prompts if s.span is not None]
    chosen = media[0] if turn // 2 % 2 else min(media, key=lambda s: s.n_pending)
    if _is_whole(chosen):
        return texts if texts and turn % 2 else [chosen]
    return [s for s in prompts if s.span is None or s is chosen]


def shares(
    prompts: SequenceOf[Sequence], n: int, *, least: int = 1, turn: int = 0
) -> list[tuple[Sequence, int]]:
    """The share of `n` tokens that each of `prompts` gets, the one admitted first in front.

    The first gets up to half of them, so that no prompt starves. The others go to the prompts
    that need the fewest, so that a short one doesn't wait for a long one. If a half is less than
    `least` tokens, the first gets all of them in every second `turn`.
    """
    if not prompts or n <= 0:
        return []
    half = (n + 1) // 2
    if half < least:
        half = n * (turn % 2)
    granted = {prompts[0].id: min(prompts[0].n_next, half)}
    n -= granted[prompts[0].id]
    for sequence in sorted(prompts, key=lambda s: s.n_pending):
        have = granted.get(sequence.id, 0)
        more = min(sequence.n_next - have, n)
        granted[sequence.id] = have + more
        n -= more
    return [(s, granted[s.id]) for s in prompts if granted[s.id]]


def evenly(n_pending: int, n_prompt: int) -> int:
    """The number of pending tokens to evaluate, about `n_prompt`: the last steps share what is left
    evenly, rather than that the last one has but a few."""
    n_steps = math.ceil(n_pending / (LITTLE_MORE * n_prompt))
    if n_steps > 1 and (n_steps > LAST_STEPS or n_prompt <= FEW_ROWS):
        return n_prompt
    while n_steps > 1 and n_pending <= FEW_ROWS * n_steps:
        n_steps -= 1
    return math.ceil(n_pending / n_steps)
