"""Sequences and chunks: what the scheduler plans with."""

from bisect import bisect, bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from specllama.engine.worker.cache.prefix_cache import ALL, OWNER, Key, adapters_of
from specllama.engine.worker.tokens import TokenBuffer

# ---- The places of media in texts, and what follows from them for chunks.
#
# A medium takes a span of tokens. They are evaluated from embeddings, which a decode can't mix
# with tokens, so a chunk is tokens or a part of one span. A span may go into the KV cache piece by
# piece, but it is never kept, shared or gone back to in the middle: another text has all of it, or
# nothing.


_START = itemgetter(0)


class Span(NamedTuple):
    """Tokens `start` up to `stop` of a text are a part of a medium. `is_whole`: they attend to each
    other, and are evaluated at once."""

    start: int
    stop: int
    is_whole: bool


def around(spans: SequenceOf[Span], at: int) -> Span | None:
    """The one of `spans`, which are in order, that has the token `at`."""
    if not spans:
        return None
    last = bisect(spans, at, key=_START) - 1
    return spans[last] if last >= 0 and at < spans[last].stop else None


def uncut(spans: SequenceOf[Span], n: int) -> int:
    """The most of a text's first `n` tokens that cut no span."""
    span = around(spans, n)
    return n if span is None else span.start


def next_stop(spans: SequenceOf[Span], at: int) -> int | None:
    """Where a chunk that begins with the token `at` ends at the latest: with its span, or in front
    of the next one. None: with the text."""
    if not spans:
        return None
    if (span := around(spans, at)) is not None:
        return span.stop
    following = bisect(spans, at, key=_START)
    return spans[following].start if following < len(spans) else None


def next_start(spans: SequenceOf[Span], at: int) -> int | None:
    """The start of the first span that begins with the token `at` or behind it."""
    following = bisect_left(spans, at, key=_START)
    return spans[following].start if following < len(spans) else None


# ---- Where a sequence is on its way.


Phase = Literal[
    "queued",  # it waits for a slot
    "paused",  # put aside, until it is resumed
    "prefill",  # in a slot: more than the token that was chosen last is to be evaluated
    "encoding",  # in a slot: the embeddings of the medium that comes next aren't there yet
    "ready",  # in a slot: the token that was chosen last is to be evaluated
    "choosing",  # in a slot: all is evaluated, and the next token is to be chosen
    "ended",
]
_LEAVING: Final[frozenset[Phase]] = frozenset({"queued", "paused", "ended"})
"""From a slot: preempted, put aside, or ended."""
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    "queued": frozenset({"paused", "prefill", "encoding", "ready", "ended"}),
    "paused": frozenset({"queued", "ended"}),
    "prefill": _LEAVING | {"encoding", "ready", "choosing"},
    "encoding": _LEAVING | {"prefill"},
    "ready": _LEAVING | {"prefill", "choosing"},
    "choosing": _LEAVING | {"prefill", "ready"},
    "ended": frozenset(),
}
"""From a slot back to `prefill`: the memory has lost cells of the text."""


class PhaseError(RuntimeError):
    """The table has no such transition."""


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One text of a request; those with the same `group` belong to one.

    `phase` is where it is on its way. `n_past` tokens are in the KV cache under `seq_id`, for slot
    `slot` (-1: none). `n_cached` of the prompt were there when it was admitted: `n_shared` of these
    in another sequence, or `n_restored` in the second tier. It is `generating` once its first token
    is sampled. `n_reuse`, if not 0, is the length from which on cached chunks may be moved to where
    the prompt has them; `n_exact` is that of `CachedText`. Only sequences with the same
    `key` share cells, and only those with the same adapters a step. `owner` is who asked for it.
    `checkpoints_at` are the positions in the prompt, in order, where checkpoints are to be made.

    `spans` are the places of media in the prompt, in order. The embeddings of those in the first
    `n_ready` tokens are there; what is behind waits for its own.

    With `n_outputs`, the logits of all tokens of the prompt are wanted, of so many at a time.

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
    phase: Phase = "queued"
    n_past: int = 0
    n_cached: int = 0
    n_shared: int = 0
    n_restored: int = 0
    slot: int = -1
    seq_id: int = -1
    generating: bool = False
    is_cut: bool = False  # whether its prompt goes on in another step
    checkpoints_at: list[int] = field(default_factory=list)
    spans: SequenceOf[Span] = ()
    n_ready: int = ALL
    n_outputs: int = 0
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

    def enter(self, phase: Phase) -> None:
        """Makes the transition to `phase`. Raises `PhaseError`."""
        if phase not in TRANSITIONS[self.phase]:
            raise PhaseError(f"a sequence that is {self.phase} can't become {phase}")
        self.phase = phase

    def settle(self) -> None:
        """The phase of a sequence in a slot, after its text or its part of the KV cache has
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
        """Go on with `token`, which has been chosen."""
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
        """The span that its next token belongs to."""
        return around(self.spans, self.n_past)

    @property
    def n_next(self) -> int:
        """Pending tokens that can be evaluated now, and as one chunk; 0 while it waits for
        embeddings."""
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
        """Tokens that a chunk may have: it ends at the next checkpoint."""
        return (self.checkpoints_at[0] if self.checkpoints_at else len(self.tokens)) - self.n_past

    @property
    def n_given(self) -> int:
        """Tokens that other sequences may share."""
        return uncut(self.spans, min(self.n_past, self.n_exact))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` up to `stop` of `sequence`, to be evaluated in the next step; and `proposed`
    ones behind these, of which the first `n_forced` need no logits to be chosen. The first
    `n_early` of all these are evaluated before what the step has of other sequences. With a `span`,
    they are a part of it, or all. `n_pad` tokens more are evaluated behind them and taken back:
    rows of separate caches are evaluated together only if each has as many."""

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
        """All that are evaluated, without the padding."""
        return self.stop - self.start + len(self.proposed)

    @property
    def n_late(self) -> int:
        """Those that come with the other sequences' tokens."""
        return self.n_tokens - self.n_early

    @property
    def is_single(self) -> bool:
        """True if it has one token, which is of no medium, but for what is proposed."""
        return self.stop - self.start == 1 and self.span is None

    @property
    def is_plain(self) -> bool:
        """True if it is of a text without media, nothing is proposed, and the logits of one token
        are wanted at most."""
        sequence = self.sequence
        return not (sequence.spans or self.proposed or sequence.wants_outputs)

    @property
    def n_outputs(self) -> int:
        """Tokens at its end whose logits are wanted."""
        if self.sequence.wants_outputs:
            return self.n_tokens
        return 1 + len(self.proposed) - self.n_forced if self.is_last else 0

    @property
    def is_last(self) -> bool:
        """True if it ends with the last token of the text: the next one is to be chosen."""
        return self.stop == len(self.sequence.tokens)


FORCED = -1
"""In the place of the index of logits: there are none, as only one token can come."""


class ProposalRun:
    """An evaluated chunk with proposed tokens, while they are chosen one by one. The logits of the
    first one are at `index` of the batch."""

    def __init__(self, chunk: Chunk, index: int) -> None:
        self.chunk = chunk
        self.n_accepted = 0
        self.is_right = True  # the last one
        self._index = index

    @property
    def place(self) -> int:
        """The index of the logits for the next token, or `FORCED`."""
        return FORCED if self.n_accepted < self.chunk.n_forced else self._index + self.n_accepted
