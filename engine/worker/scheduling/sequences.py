"""Sequences and chunks: what the scheduler plans with, and how a step is divided among prompts."""

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from engine.worker.cache.prefix_cache import ALL, OWNER, Key, adapters_of
from engine.worker.scheduling.step_cost import FEW_ROWS
from engine.worker.tokens import TokenBuffer

LITTLE_MORE = 1.25
"""Beside generating sequences, a step may have this many times as many tokens of a prompt as it
should if that spares one with the rest: few rows of a long text can take longer than many (see
`engine.worker.scheduling.step_cost.FEW_ROWS`)."""
LAST_STEPS = 3
"""So many steps share the rest of a prompt evenly."""


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One text of a request; those with the same `group` belong to one.

    `n_past` tokens are in the KV cache under `seq_id`, for slot `slot` (-1: waiting). `n_cached`
    of the prompt were there when it was admitted: `n_shared` of these in another sequence, or
    `n_restored` in the second tier. It is `generating` once its first token
    is sampled. `n_reuse`, if not 0, is the length from which on cached chunks may be moved to
    where the prompt has them; `n_exact` is that of `prefix_cache.Entry`. Only sequences with the
    same `key` share cells, and only those with the same adapters a step. `owner` is who asked for
    it. `checkpoints_at` are the positions in the prompt, in order, where checkpoints are to be
    made.

    `proposed` may follow `tokens`, and can be evaluated with the last one. It is no part of the
    text, and holds until the text changes. The first `n_forced` of them are bound to come. Of what
    was evaluated, `n_ahead` tokens, behind the `n_past`, are neither confirmed nor taken back yet;
    this is so within a step only.
    """

    id: int
    tokens: TokenBuffer
    n_prompt: int
    group: int = 0
    id_slot: int = -1
    cache_prompt: bool = True
    n_reuse: int = 0
    n_exact: int = ALL
    key: Key = ()
    owner: int = 0
    n_past: int = 0
    n_cached: int = 0
    n_shared: int = 0
    n_restored: int = 0
    slot: int = -1
    seq_id: int = -1
    generating: bool = False
    is_cut: bool = False  # whether its prompt goes on in another step
    checkpoints_at: list[int] = field(default_factory=list)
    proposed: tuple[int, ...] = ()
    n_forced: int = 0
    n_ahead: int = 0

    @property
    def adapters(self) -> Key:
        """The adapters of its `key`."""
        return adapters_of(self.key)

    @property
    def text_key(self) -> Key:
        """Only texts under the same one may suggest how it goes on: those of its owner, with the
        same adapters."""
        return (*self.adapters, (OWNER, float(self.owner)))

    @property
    def n_pending(self) -> int:
        """Tokens still to be evaluated; 1 for a sequence that just generates."""
        return len(self.tokens) - self.n_past

    @property
    def is_next(self) -> bool:
        """True if the next step is to evaluate the token that was chosen last."""
        return self.generating and self.n_pending == 1

    @property
    def n_to_checkpoint(self) -> int:
        """Tokens that a chunk may have: it ends at the next checkpoint."""
        return (self.checkpoints_at[0] if self.checkpoints_at else len(self.tokens)) - self.n_past

    @property
    def n_given(self) -> int:
        """Tokens that other sequences may share."""
        return min(self.n_past, self.n_exact)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` up to `stop` of `sequence`, to be evaluated in the next step; and `proposed`
    ones behind these, of which the first `n_forced` need no logits to be chosen. The first
    `n_early` of all these are evaluated before what the step has of other sequences."""

    sequence: Sequence
    start: int
    stop: int
    proposed: tuple[int, ...] = ()
    n_forced: int = 0
    n_early: int = 0

    @property
    def n_tokens(self) -> int:
        """All that are evaluated."""
        return self.stop - self.start + len(self.proposed)

    @property
    def n_late(self) -> int:
        """Those that come with the other sequences' tokens."""
        return self.n_tokens - self.n_early

    @property
    def is_single(self) -> bool:
        """True if it has one token, but for what is proposed."""
        return self.stop - self.start == 1

    @property
    def n_outputs(self) -> int:
        """Tokens at its end whose logits are wanted."""
        return 1 + len(self.proposed) - self.n_forced if self.is_last else 0

    @property
    def is_last(self) -> bool:
        """True if it ends with the last token of the text: the next one is to be chosen."""
        return self.stop == len(self.sequence.tokens)


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
    granted = {prompts[0].id: min(prompts[0].n_pending, half)}
    n -= granted[prompts[0].id]
    for sequence in sorted(prompts, key=lambda s: s.n_pending):
        have = granted.get(sequence.id, 0)
        more = min(sequence.n_pending - have, n)
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
