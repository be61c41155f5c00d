"""Sequences and chunks, the data of the scheduler."""

from bisect import bisect, bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from specllama.engine.wire.stats import MissReason
from specllama.engine.worker.cache.texts import ALL, OWNER, Key, adapters_of
from specllama.engine.worker.scheduling.fairness import QueueTicket
from specllama.engine.worker.tokens import TokenBuffer

# ---- The spans of media in texts, and where they limit chunks.
#
# A medium occupies a span of tokens, which are evaluated from embeddings. A decode can't mix
# embeddings with tokens, so a chunk is either tokens or a part of one span. A span may enter the KV
# cache in parts, but is never kept or shared in part, and no text is cut inside one.


_START = itemgetter(0)


class Span(NamedTuple):
    """Tokens `start` up to `stop` (exclusive) of a text belong to a medium. `is_whole`: they attend
    to each other, so they must be evaluated in one piece."""

    start: int
    stop: int
    is_whole: bool


def around(spans: SequenceOf[Span], at: int) -> Span | None:
    """The span of `spans` (sorted) that contains the token `at`; None if there is none."""
    if not spans:
        return None
    last = bisect(spans, at, key=_START) - 1
    return spans[last] if last >= 0 and at < spans[last].stop else None


def uncut(spans: SequenceOf[Span], n: int) -> int:
    """`n`, or the start of the span that a cut after `n` tokens would divide."""
    span = around(spans, n)
    return n if span is None else span.start


def next_stop(spans: SequenceOf[Span], at: int) -> int | None:
    """The latest end of a chunk that begins with the token `at`: the end of its span, or the start
    of the next span. None: the end of the text."""
    if not spans:
        return None
    if (span := around(spans, at)) is not None:
        return span.stop
    following = bisect(spans, at, key=_START)
    return spans[following].start if following < len(spans) else None


def next_start(spans: SequenceOf[Span], at: int) -> int | None:
    """The start of the first span that begins at the token `at` or later; None if there is none."""
    following = bisect_left(spans, at, key=_START)
    return spans[following].start if following < len(spans) else None


# ---- The phases of a sequence.


Phase = Literal[
    "queued",  # waits for a slot
    "paused",  # without a slot, until it is resumed
    "prefill",  # in a slot: more than its newest token has to be evaluated
    "encoding",  # in a slot: waits for the embeddings of its next medium
    "ready",  # in a slot: only its newest token has to be evaluated
    "choosing",  # in a slot: all is evaluated, its next token has to be chosen
    "ended",
]
_LEAVING: Final[frozenset[Phase]] = frozenset({"queued", "paused", "ended"})
"""The phases of a sequence that leaves its slot: preempted, paused, or ended."""
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    "queued": frozenset({"paused", "prefill", "encoding", "ready", "ended"}),
    "paused": frozenset({"queued", "ended"}),
    "prefill": _LEAVING | {"encoding", "ready", "choosing"},
    "encoding": _LEAVING | {"prefill"},
    "ready": _LEAVING | {"prefill", "choosing"},
    "choosing": _LEAVING | {"prefill", "ready"},
    "ended": frozenset(),
}
"""Allowed transitions. A sequence in a slot goes back to `prefill` when the memory has lost cells
of its text."""


class PhaseError(RuntimeError):
    """A transition that `TRANSITIONS` doesn't allow."""


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One text of a request. The sequences of one client call have the same `group`.

    `phase` is its state. Its first `n_past` tokens are in the KV cache under `seq_id`, in slot
    `slot` (-1: none). `n_cached` tokens of the prompt were cached at its admission: `n_shared` of
    these in another sequence, or `n_restored` in the second tier, of which `n_from_files` in files.
    `miss_reason`: why the first other token had to be computed (None: it is the last one, whose
    logits are needed). `generating` is True once its first token is sampled. `n_reuse`: the minimum
    length of cached chunks that may be moved to their positions in the prompt (0: none are moved);
    `n_exact` is as in `CachedText`. Only sequences with the same `key` share cells; only sequences
    with the same adapters share a step.
    `owner` identifies the client, whose cached texts may have `cache_bytes` together (0: no limit).
    `checkpoints_at` are the sorted positions in the prompt at which
    checkpoints will be made.

    `weight` and `priority` are as in `engine.wire.requests.Terms`. At most `n_predict` tokens are
    generated (-1: no limit). `ticket` is its place in the queue, or its account while it has a
    slot; `n_charged` of its tokens are charged to that, or were cached.

    `spans` are the sorted spans of media in the prompt. The first `n_ready` tokens can be
    evaluated: the embeddings of their media are available.

    `n_outputs`, if not 0: the logits of all prompt tokens are wanted, at most so many in one step.

    `proposed` tokens may follow `tokens`, and can be evaluated together with the last one. They are
    not part of the text, and become invalid when it changes. The first `n_forced` of them are
    certain. `n_ahead`: the number of evaluated tokens after the first `n_past` that are neither
    confirmed nor taken back yet; 0 between steps.
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
    weight: float = 1.0
    priority: int = 0
    n_predict: int = -1
    cache_bytes: int = 0
    phase: Phase = "queued"
    n_past: int = 0
    n_cached: int = 0
    n_shared: int = 0
    n_restored: int = 0
    n_own: int = 0  # tokens that it had evaluated itself when it left its slot
    n_from_files: int = 0
    miss_reason: MissReason | None = None
    slot: int = -1
    seq_id: int = -1
    generating: bool = False
    is_cut: bool = False  # its prompt continues in another step
    checkpoints_at: list[int] = field(default_factory=list)
    spans: SequenceOf[Span] = ()
    n_ready: int = ALL
    n_outputs: int = 0
    proposed: tuple[int, ...] = ()
    n_forced: int = 0
    n_ahead: int = 0
    ticket: "QueueTicket[Sequence] | None" = None
    n_charged: int = 0

    @property
    def rank(self) -> float:
        """The aged priority at its admission to a slot."""
        return self.ticket.rank if self.ticket is not None else self.priority

    @cached_property
    def adapters(self) -> Key:
        """The adapters of its `key`, which never changes."""
        return adapters_of(self.key)

    @property
    def text_key(self) -> Key:
        """The key for proposals from other texts: only texts with the same owner and the same
        adapters may be used."""
        return (*self.adapters, (OWNER, float(self.owner)))

    @property
    def n_pending(self) -> int:
        """The number of tokens to evaluate; 1 for a sequence that is only generating."""
        return len(self.tokens) - self.n_past

    def limit_origins(self) -> None:
        """Makes sure that no more tokens came from somewhere than were cached: a sequence that left
        its slot finds tokens that it has evaluated itself."""
        self.n_shared = min(self.n_shared, self.n_cached)
        self.n_restored = min(self.n_restored, self.n_cached)
        self.n_from_files = min(self.n_from_files, self.n_restored)

    def enter(self, phase: Phase) -> None:
        """Makes the transition to `phase`. Raises `PhaseError`."""
        if phase not in TRANSITIONS[self.phase]:
            raise PhaseError(f"a sequence that is {self.phase} can't become {phase}")
        self.phase = phase

    def start_again(self, *, is_cached: bool = False) -> None:
        """Reset a sequence that no longer has cells in the KV cache; `is_cached`: other sequences
        can share them."""
        self.n_own = max(0, self.n_past - self.n_cached) if is_cached else 0
        self.n_past, self.n_exact, self.checkpoints_at = 0, ALL, []

    def settle(self) -> None:
        """Update the phase of a sequence in a slot, after its text or its part of the KV cache has
        changed."""
        n = self.n_pending
        phase: Phase
        if not n:
            phase = "choosing"
        elif n == 1 and self.generating:
            phase = "ready"
        else:
            phase = "prefill" if self.n_next else "encoding"
        if phase != self.phase:
            self.enter(phase)

    def append(self, token: int) -> None:
        """Append `token`, which has been chosen."""
        self.generating = True
        self.tokens.append(token)
        self.settle()

    def embed(self, n_ready: int) -> None:
        """Set `n_ready` of a sequence in a slot."""
        if n_ready != self.n_ready:
            self.n_ready = n_ready
            self.settle()

    @property
    def span(self) -> Span | None:
        """The span of its next token; None if that is a text token."""
        return around(self.spans, self.n_past)

    @property
    def n_next(self) -> int:
        """The number of pending tokens that can be evaluated now, as one chunk; 0 while it waits
        for embeddings."""
        if self.wants_outputs:
            return min(self.n_pending, self.n_outputs)
        if not self.spans:
            return self.n_pending
        stop = next_stop(self.spans, self.n_past)
        stop = len(self.tokens) if stop is None else stop
        return max(0, min(stop, self.n_ready) - self.n_past)

    @property
    def wants_outputs(self) -> bool:
        """True while the logits of every token are wanted."""
        return self.n_outputs > 0 and not self.generating

    @property
    def n_to_checkpoint(self) -> int:
        """The maximum length of a chunk: it must end at the next checkpoint."""
        return (self.checkpoints_at[0] if self.checkpoints_at else len(self.tokens)) - self.n_past

    @property
    def n_given(self) -> int:
        """The number of tokens that other sequences may share."""
        return uncut(self.spans, min(self.n_past, self.n_exact))


class Chunk(NamedTuple):
    """Tokens `start` up to `stop` (exclusive) of `sequence`, to be evaluated in the next step, and
    after these the `proposed` ones. The first `n_forced` of the proposed tokens need no logits. The
    first `n_early` tokens of the chunk are evaluated before the other sequences' rows of the step.
    With a `span`, the tokens are a part of it, or all of it. `n_pad` padding tokens are evaluated
    after them and taken back: separate caches are evaluated together only with equal numbers of
    rows."""

    sequence: Sequence
    start: int
    stop: int
    proposed: tuple[int, ...] = ()
    n_forced: int = 0
    n_early: int = 0
    span: Span | None = None
    n_pad: int = 0

    @property
    def n_tokens(self) -> int:
        """The number of evaluated tokens, without padding."""
        return self.stop - self.start + len(self.proposed)

    @property
    def n_late(self) -> int:
        """The number of tokens that are evaluated together with the other sequences' tokens."""
        return self.n_tokens - self.n_early

    @property
    def is_single(self) -> bool:
        """True if it has one token apart from proposed ones, and that isn't a medium's."""
        return self.stop - self.start == 1 and self.span is None

    @property
    def is_plain(self) -> bool:
        """True if its text has no media, nothing is proposed, and at most one token's logits are
        wanted."""
        sequence = self.sequence
        return not (sequence.spans or self.proposed or sequence.wants_outputs)

    @property
    def n_outputs(self) -> int:
        """The number of tokens at its end whose logits are wanted."""
        if self.sequence.wants_outputs:
            return self.n_tokens
        return 1 + len(self.proposed) - self.n_forced if self.is_last else 0

    @property
    def is_last(self) -> bool:
        """True if it ends with the last token of the text, so the next token can be chosen."""
        return self.stop == len(self.sequence.tokens)


FORCED = -1
"""Stands for the index of logits if the next token is forced: a forced token needs no logits."""


class ProposalRun:
    """An evaluated chunk with proposed tokens, while they are verified one by one. The logits for
    the first token that isn't forced are at `index` of the batch."""

    def __init__(self, chunk: Chunk, index: int) -> None:
        self.chunk = chunk
        self.n_accepted = 0
        self.is_right = True  # the last verified token was the proposed one
        self._index = index

    @property
    def place(self) -> int:
        """The index of the logits for the next token, or `FORCED`."""
        return FORCED if self.n_accepted < self.chunk.n_forced else self._index + self.n_accepted
