"""Divides a step among prompts, and plans proposed tokens into the remaining room."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from math import ceil

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.scheduling.memory import CacheLayout, Cutting
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from specllama.engine.worker.scheduling.step_clock import FEW_ROWS

LITTLE_MORE = 1.1
"""While sequences generate, a step may exceed its limit of prompt tokens by this factor if that
saves a further step for the rest: few rows of a long text can take longer than many (see
`engine.worker.scheduling.step_clock.FEW_ROWS`)."""
LAST_STEPS = 3
"""The number of last steps that share the rest of a prompt evenly."""


KEY_STEPS = 4
"""Maximum number of consecutive steps of one key while another one waits. Changing the LoRA
adapters of a context takes up to a few milliseconds, too long for every step."""


class AdapterTurns:
    """The order in which the adapters of the active sequences get steps."""

    def __init__(self) -> None:
        self._turns: list[Key] = []  # the current one first
        self._steps = 0  # consecutive steps of the current adapters

    def next(self, active: Iterable[Sequence]) -> list[Key]:
        """The adapters of all active sequences, in the order of their turns."""
        keys = dict.fromkeys(s.adapters for s in active)
        if len(keys) < 2:
            self._turns, self._steps = list(keys), 0
            return self._turns
        last = self._turns[:1]
        known = [key for key in self._turns if key in keys]
        self._turns = known + [key for key in keys if key not in known]
        self._steps = self._steps + 1 if self._turns[:1] == last else 1
        if self._steps > KEY_STEPS:
            self._turns.append(self._turns.pop(0))
            self._steps = 1
        return self._turns


def first_of(prompts: list[Sequence], n_prompt: int) -> list[Sequence]:
    """The sequences with the best rank, if they have `n_prompt` tokens to evaluate; otherwise all,
    the best ones first. An aged rank counts as the priority that it has just passed."""
    ranks = [ceil(s.rank) for s in prompts]
    best = min(ranks)
    if best == max(ranks):
        return prompts
    first = [s for s, rank in zip(prompts, ranks, strict=True) if rank == best]
    if sum(s.n_next for s in first) >= n_prompt:
        return first
    return sorted(prompts, key=lambda s: ceil(s.rank))


class PrefillPlanner:
    """Plans the prompt chunks of each step."""

    def __init__(self, cache: PrefixCache, layout: CacheLayout, *, n_batch: int) -> None:
        self._cache = cache
        self._layout = layout
        self._n_batch = n_batch
        self._n_steps = 0  # steps with prompts
        self._n_planned = 0  # prompt tokens of the next step
        self._n_most = n_batch  # limit of a step; lower after llama.cpp had no cells

    def plan(
        self, prompts: SequenceOf[Sequence], n_ready: int, n_prompt: int, n_burst: int
    ) -> list[Chunk]:
        """Chunks of `prompts`, which are in the order of their admission, for a step that also has
        one token of each of `n_ready` generating sequences. `n_prompt` and `n_burst` are as in
        `Scheduler.plan`."""
        n_prompt, n_burst = min(n_prompt, self._n_most), min(n_burst, self._n_most)
        chunks = self._plan(prompts, n_ready, n_prompt, n_burst)
        self._n_planned = sum(chunk.n_tokens for chunk in chunks)
        return chunks

    def evaluated(self) -> None:
        """Record that the step has succeeded: the limit of the next one rises again."""
        self._n_planned, self._n_most = 0, min(2 * self._n_most, self._n_batch)

    def relieve(self) -> bool:
        """Called when llama.cpp found no cells: halves the prompt tokens of the next step. Returns
        False if that is impossible."""
        half = min(self._n_most, self._n_planned) // 2
        self._n_most = max(1, half)
        return half > 0

    def _plan(
        self, prompts: SequenceOf[Sequence], n_ready: int, n_prompt: int, n_burst: int
    ) -> list[Chunk]:
        self._n_steps += 1
        prompts = with_one_read(prompts)
        everyone, prompts = prompts, with_one_medium(prompts, self._n_steps)
        if (whole := next((s for s in prompts if _is_whole(s)), None)) is not None:
            n = n_ready + whole.n_next
            if self._cache.make_room(n) >= n:
                return [_chunk(whole, whole.n_next)]
            prompts = [s for s in everyone if s.span is None]  # the medium waits for cells
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
        least = self._layout.least_rows(n_ready)
        for sequence, n in shares(prompts, min(wanted, room), least=least, turn=self._n_steps):
            chunks.append(_chunk(sequence, min(n, sequence.n_to_checkpoint)))
        return chunks


def _chunk(sequence: Sequence, n: int) -> Chunk:
    sequence.is_cut = n < sequence.n_pending
    return Chunk(sequence, sequence.n_past, sequence.n_past + n, span=sequence.span)


def _is_whole(sequence: Sequence) -> bool:
    """True if `sequence` continues with a span that must be evaluated in one piece."""
    return sequence.span is not None and sequence.span.is_whole


def with_one_read(prompts: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
    """`prompts` with only the first one of the prompts that have `wants_outputs`: each of these
    uses all the memory for logits in a step."""
    read = [s for s in prompts if s.wants_outputs]
    return prompts if len(read) < 2 else [s for s in prompts if s is read[0] or s not in read]


def with_one_medium(prompts: SequenceOf[Sequence], turn: int) -> SequenceOf[Sequence]:
    """The `prompts` of the step number `turn`: at most one of them continues with a span, since
    each span takes a decode of its own.

    In half of the steps it is the first one, else the one with the fewest pending tokens. If its
    span must be evaluated in one piece, its steps alternate with steps of the prompts that continue
    with tokens.
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
    """The share of `n` tokens that each of `prompts` gets. `prompts` are in the order of their
    admission.

    Prompts with the best rank come first (see `first_of`). The first prompt gets up to half of the
    tokens, so that no prompt starves. The rest goes to the
    prompts with the fewest pending tokens, so that short prompts don't wait for long ones. If a
    half is less than `least` tokens, the first prompt gets up to all `n` tokens in every second
    `turn`, and no reserved share in the other turns.
    """
    if not prompts or n <= 0:
        return []
    half = (n + 1) // 2
    if half < least:
        half = n * (turn % 2)
    granted = {prompts[0].id: min(prompts[0].n_next, half)}
    n -= granted[prompts[0].id]
    for sequence in sorted(prompts, key=lambda s: (ceil(s.rank), s.n_pending)):
        have = granted.get(sequence.id, 0)
        more = min(sequence.n_next - have, n)
        granted[sequence.id] = have + more
        n -= more
    return [(s, granted[s.id]) for s in prompts if granted[s.id]]


def evenly(n_pending: int, n_prompt: int) -> int:
    """The number of pending tokens to evaluate, about `n_prompt`. The last steps share the rest
    evenly, so that the very last one doesn't have only a few."""
    n_steps = ceil(n_pending / (LITTLE_MORE * n_prompt))
    if n_steps > 1 and (n_steps > LAST_STEPS or n_prompt <= FEW_ROWS):
        return n_prompt
    while n_steps > 1 and n_pending < (FEW_ROWS + 1) * n_steps:
        n_steps -= 1
    return ceil(n_pending / n_steps)


# ---- Proposed tokens, which chunks have after the texts of their sequences.
#
# Their cells belong to the sequence, but not to its text. Within the step, each proposed token is
# confirmed in order, or taken back together with all tokens after it.


class Ahead:
    """Plans proposed tokens into the unused room of a step, and keeps track of the evaluated ones
    until they are confirmed or taken back."""

    def __init__(
        self,
        cache: PrefixCache,
        layout: CacheLayout,
        cutting: Cutting,
        *,
        n_batch: int,
        n_ctx: int,
    ) -> None:
        self._cache = cache
        self._layout = layout
        self._cutting = cutting
        self._n_batch = n_batch
        self._n_ctx = n_ctx
        self.takes_early = True
        """For separate caches, where one decode can't have all rows: True if forced tokens may be
        evaluated before the rest of the step."""
        self._planned: list[Chunk] = []  # chunks of the next step with proposals
        self._is_short = False  # llama.cpp had no cells for them

    def plan(self, ready: SequenceOf[Sequence], n_others: int) -> list[Chunk]:
        """Chunks with one token of each of `ready`, and its proposed tokens. Without proposals, the
        step has `n_others` tokens, including one for each of `ready`."""
        if not any(s.proposed for s in ready):
            self._planned = []
            return [Chunk(s, s.n_past, s.n_past + 1) for s in ready]
        room = self._n_batch - n_others
        if (n_free := self._cache.n_free) is not None:
            room = min(room, n_free - n_others)
        n = 0 if self._is_short else self._cutting.n_ahead(max(0, room))
        grants = self._layout.grants(ready, n, self._n_ctx, early=self.takes_early)
        chunks = [
            Chunk(s, s.n_past, s.n_past + 1, s.proposed[:n], min(s.n_forced, n), n_early)
            for s, (n, n_early) in zip(ready, grants, strict=True)
        ]
        self._planned = [chunk for chunk in chunks if chunk.proposed]
        return chunks

    def evaluated(self, chunks: SequenceOf[Chunk]) -> None:
        """Record that the chunks are in the KV cache. The caller confirms the proposed tokens next,
        or takes them back."""
        self._is_short = False
        for chunk in chunks:
            chunk.sequence.n_ahead = len(chunk.proposed)
            self.drop_proposed(chunk.sequence)

    def relieve(self) -> bool:
        """Called when llama.cpp found no cells: drops all proposals from the next step. Returns
        False if this step had none."""
        had_some = bool(self._planned)
        self._is_short = self._is_short or had_some
        for chunk in self._planned:
            if chunk.n_early:  # the early ones may be in the cache already
                self._cache.cut(chunk.sequence.seq_id, chunk.start)
        self._planned = []
        return had_some

    def confirm(self, sequence: Sequence) -> None:
        """Confirm the first token ahead: it has just been added to the text, and is already
        evaluated."""
        sequence.n_past += 1
        sequence.n_ahead -= 1
        sequence.settle()

    def take_back(self, sequence: Sequence) -> None:
        """Take back the evaluated tokens that are not confirmed."""
        if sequence.n_ahead:
            sequence.n_ahead = 0
            if not self._cache.cut(sequence.seq_id, sequence.n_past):
                sequence.n_past = 0
                sequence.settle()

    def drop_proposed(self, sequence: Sequence) -> None:
        """Discard the tokens proposed for `sequence`, before they are evaluated."""
        sequence.proposed, sequence.n_forced = (), 0
