"""A draft model: a small one whose likeliest tokens are proposed to the large one.

All sequences are drafted for together, one token of each in a decode. A text that is new to the
draft model, such as a long prompt, is evaluated in pieces, a few in each step, and nothing is
proposed for it before its end: the steps of the others must not become long.
"""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from specllama.engine import system
from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    OutOfCellsError,
    StateArray,
)
from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.scheduling.memory import MIN_COPY
from specllama.engine.worker.speculation.source import Ask
from specllama.engine.worker.tokens import TokenArray, TokenBuffer, common_prefix

log = logging.getLogger("specllama.engine.worker.speculation.draft_model")

# ---- The texts that a draft model has evaluated: one in each sequence of its context.
#
# A text goes on from the longest beginning that is there already, whoever's it was, so that only
# what is new is evaluated. Only texts of the same key know of each other.


def _empty() -> TokenBuffer:
    return TokenBuffer(np.empty(0, np.int32))


@dataclass(eq=False)
class DraftPosition:
    """A sequence of the context, and the text that is evaluated there. `id` is that of the
    sequence that it is drafted for; None if it is kept for others."""

    number: int
    text: TokenBuffer = field(default_factory=_empty)
    key: Key = ()
    id: int | None = None
    used: int = 0  # the higher, the later

    def __len__(self) -> int:
        return len(self.text)


class DraftCache:
    """The places of `context`, which belongs to this cache alone. If it is a `unified` one, a copy
    of a beginning costs nothing."""

    def __init__(self, context: Context, *, unified: bool) -> None:
        self._context = context
        self._least_copy = 1 if unified else MIN_COPY
        self._places = [DraftPosition(number) for number in range(context.n_seq)]
        self._by_id: dict[int, DraftPosition] = {}
        self._clock = 0

    def place(self, ask: Ask, others: Container[int] = ()) -> DraftPosition:
        """The place of a sequence, with the longest beginning of its text that is there. It always
        lacks the last token, whose logits are wanted. A new one's place may be taken from
        sequences that aren't among `others`."""
        tokens = ask.tokens.view()
        place = self._by_id.get(ask.id)
        if place is None:
            place = self._new(ask, tokens, others)
        self._clock += 1
        place.used = self._clock
        self._cut(place, self._usable(place, tokens))
        return place

    def _usable(self, place: DraftPosition, tokens: TokenArray) -> int:
        """How many of `tokens`, the last one aside, needn't be evaluated again there."""
        n = min(common_prefix(place.text.view(), tokens), len(tokens) - 1)
        return n if self._context.is_cuttable or n == len(place) else 0

    def _new(self, ask: Ask, tokens: TokenArray, others: Container[int]) -> DraftPosition:
        free = [each for each in self._places if each.id is None]
        free = free or [each for each in self._places if each.id not in others]
        alike = {
            each.number: self._usable(each, tokens) for each in self._places if each.key == ask.key
        }
        place = max(free, key=lambda each: (alike.get(each.number, 0), not len(each), -each.used))
        if place.id is not None:
            self.forget(place.id)
        source = max(self._places, key=lambda each: alike.get(each.number, 0))
        n = alike.get(source.number, 0)
        if source is not place and n >= alike.get(place.number, 0) + self._least_copy:
            self.clear(place)
            if self._context.copy(source.number, place.number, n):
                place.text.extend(source.text.view(0, n))
        elif place.key != ask.key:
            self.clear(place)
        place.id, place.key = ask.id, ask.key
        self._by_id[ask.id] = place
        return place

    def _cut(self, place: DraftPosition, n: int) -> None:
        """Keep the first `n` tokens; none if they can't be taken out one by one after all."""
        if n == len(place):
            return
        if n and self._context.remove(place.number, n):
            place.text.remove(n, len(place))
        else:
            self.clear(place)

    def clear(self, place: DraftPosition) -> None:
        self._context.remove(place.number, 0)
        place.text = _empty()

    def save(self, place: DraftPosition) -> StateArray | None:
        """What `back` needs; None where it needs nothing."""
        return None if self._context.is_cuttable else self._context.save(place.number)

    def back(self, place: DraftPosition, n: int, state: StateArray | None) -> None:
        """Keep the first `n` tokens of memory that can't be cut; `state` was saved behind them.
        Other memory is cut when it is known what was wrong."""
        if self._context.is_cuttable or n == len(place):
            return
        if state is not None and self._context.rewind(place.number, n, state):
            place.text.remove(n, len(place))
        else:
            self.clear(place)

    def make_room(self, asking: Iterable[DraftPosition]) -> int | None:
        """Drop the text that was used the longest time ago, of those that nobody drafts for. If
        there is none, it is the longest text of `asking`, whose id is returned: to evaluate it
        again would be in vain."""
        idle = [each for each in self._places if each.id is None and len(each)]
        place = min(idle, key=lambda each: each.used) if idle else max(asking, key=len)
        self.clear(place)
        return place.id

    def forget(self, id: int) -> None:
        """The text is kept for others until its place is needed."""
        if (place := self._by_id.pop(id, None)) is not None:
            place.id = None


N_LIKELY: Final = 10
"""Tokens among which the probability of the likeliest one is told, as llama-server does."""
NEAR: Final = 16.0
"""A logit so far below the highest has no part in that probability."""
CATCH_UP_SHARE: Final = 0.5
"""Of the time of a step, what may be spent on texts that are new to the draft model."""
LEAST_PIECE, FIRST_PIECE = 32, 128
"""Tokens of such texts for a step: the fewest, and those before it is known how long they take."""
FEW: Final = 8
"""Tokens that a text may have grown by to be none that is new: those of a step."""
FADING: Final = 0.8


class _Row(NamedTuple):
    """One of the asks, whose next token is chosen from the logits at `output` of the batch."""

    ask: int
    place: DraftPosition
    output: int


class DraftModel:
    """Proposes what a draft model says. `n_vocab` is the size of the vocabulary of the model that
    it drafts for; a text's first `limit` tokens at most are evaluated.

    A failure ends the drafting, not the step.
    """

    name = "draft-simple"

    def __init__(
        self,
        context: Context,
        *,
        unified: bool,
        n_vocab: int,
        limit: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._context = context
        self._model: Model = context.model
        self._cache = DraftCache(context, unified=unified)
        self._n_known = min(n_vocab, self._model.n_vocab)
        self._limit = min(limit, context.n_ctx_seq)
        self._pace = _Pace(clock or system.now)
        self.unread: Set[int] = set()
        self._given_up: set[int] = set()  # ids of texts that there is no room for
        self._is_open = True

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        proposals: list[list[int]] = [[] for _ in asks]
        self.unread = set()
        if not self._is_open:
            return proposals
        try:
            self._propose(asks, proposals)
        except Exception as error:
            reason = str(error) if isinstance(error, BackendError) else repr(error)
            log.error("the draft model is given up, and the texts go on without: %s", reason)
            self.close()
            return [[] for _ in asks]
        return proposals

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        """Nothing to learn: the next text shows what was right."""

    def forget(self, id: int) -> None:
        self._cache.forget(id)
        self._given_up.clear()  # now there is some

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._context.close()
            self._model.close()

    # ---- a step ------------------------------------------------------------------------------

    def _propose(self, asks: Sequence[Ask], proposals: list[list[int]]) -> None:
        wanted = [i for i, ask in enumerate(asks) if self._is_wanted(ask)]
        ids = {asks[i].id for i in wanted}
        self._pace.begin({asks[i].id: len(asks[i].tokens) for i in wanted})
        places = {i: self._cache.place(asks[i], ids) for i in wanted}
        before = {i: len(place) for i, place in places.items()}
        try:
            rows = self._evaluate(asks, places)
            whole = {row.ask for row in rows}
            self.unread = {
                asks[i].id for i, n in before.items() if i not in whole and len(places[i]) > n
            }
            self._draft(asks, rows, proposals)
        except OutOfCellsError:
            # Room is made for the next step; what was drafted so far is none the worse for it.
            if (id := self._cache.make_room(places.values())) is not None:
                self._given_up.add(id)
        self._pace.end()

    def _is_wanted(self, ask: Ask) -> bool:
        fits = 0 < len(ask.tokens) <= self._limit
        return ask.n > 0 and fits and ask.id not in self._given_up

    def _evaluate(self, asks: Sequence[Ask], places: dict[int, DraftPosition]) -> list[_Row]:
        """Evaluate what is new of the texts, as far as time allows, the shortest first; the rows
        of those that are evaluated as a whole."""
        n_new, n_left = self._pace.piece, self._context.n_batch
        taken: list[tuple[int, DraftPosition, TokenArray]] = []
        for i in sorted(places, key=lambda i: len(asks[i].tokens) - len(places[i])):
            ask, place = asks[i], places[i]
            stop = min(len(ask.tokens), len(place) + min(n_left, FEW + n_new))
            piece = ask.tokens.view(len(place), stop)
            if not len(piece) or piece.max() >= self._n_known:
                continue  # of tokens that the draft model doesn't have, it can make nothing
            n_left, n_new = n_left - len(piece), n_new - max(0, len(piece) - FEW)
            taken.append((i, place, piece))
        if not taken:
            return []
        batch = self._context.batch
        batch.clear()
        rows: list[_Row] = []
        # llama.cpp evaluates separate caches together only in the order of their ids.
        for i, place, piece in sorted(taken, key=lambda each: each[1].number):
            is_whole = len(place) + len(piece) == len(asks[i].tokens)
            output = batch.add(piece, len(place), place.number, output=is_whole)
            if is_whole:
                rows.append(_Row(i, place, output))
        started = self._pace.now()
        self._context.decode()
        for _, place, piece in taken:
            place.text.extend(piece)
        if batch.n_tokens >= LEAST_PIECE:
            self._context.synchronize()
            self._pace.evaluated(batch.n_tokens, started)
        return rows

    def _draft(self, asks: Sequence[Ask], rows: list[_Row], proposals: list[list[int]]) -> None:
        """Choose a token for each of `rows`, evaluate these, and so on."""
        behind = [(row.place, len(row.place), self._cache.save(row.place)) for row in rows]
        try:
            while rows:
                rows = self._go_on(asks, rows, proposals)
        finally:
            for place, n, state in behind:
                self._cache.back(place, n, state)

    def _go_on(
        self, asks: Sequence[Ask], rows: Sequence[_Row], proposals: list[list[int]]
    ) -> list[_Row]:
        """Take the next token for each of `rows`; evaluates those that another one may follow."""
        more: list[tuple[int, DraftPosition, int]] = []
        for i, place, output in rows:
            token = likeliest(self._context.logits(output), asks[i].p_min)
            if token is None or token >= self._n_known:
                continue
            proposals[i].append(token)
            is_last = len(proposals[i]) == asks[i].n or token in self._model.eog
            if not is_last and len(place) < self._limit:
                more.append((i, place, token))
        if not more:
            return []
        batch = self._context.batch
        batch.clear()
        indices = batch.add_singles(
            [token for _, _, token in more],
            [len(place) for _, place, _ in more],
            [place.number for _, place, _ in more],
            [True] * len(more),
        )
        self._context.decode()
        for _, place, token in more:
            place.text.append(token)
        return [_Row(i, place, index) for (i, place, _), index in zip(more, indices, strict=True)]


def likeliest(logits: npt.NDArray[np.float32], p_min: float) -> int | None:
    """The token with the highest logit, unless its probability among the likeliest ones is below
    `p_min`; None as well if there are no numbers to choose from."""
    token = int(logits.argmax())
    best = float(logits[token])
    if not np.isfinite(best):
        return None
    if p_min > 0:
        near = logits[logits > best - NEAR].astype(np.float64)
        if len(near) > N_LIKELY:
            near = np.partition(near, -N_LIKELY)[-N_LIKELY:]
        if 1 / np.exp(near - best).sum() < p_min:
            return None
    return token


class _Pace:
    """How many tokens of new texts a step may evaluate: what takes a share of the time that the
    model's own step takes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self.piece = FIRST_PIECE
        self._per_token = 0.0  # seconds
        self._step = 0.0  # seconds of the model's own step
        self._ended = 0.0
        self._lengths: dict[int, int] = {}

    def begin(self, lengths: Mapping[int, int]) -> None:
        """These are the lengths of the texts, by id. What the model has done since the last call,
        it has done in as many steps at most as a text has grown by."""
        n_steps = max((n - self._lengths.get(id, n) for id, n in lengths.items()), default=0)
        if n_steps > 0:
            self._step = _faded(self._step, (self.now() - self._ended) / n_steps)
        self._lengths = dict(lengths)
        if self._per_token and self._step:
            self.piece = max(LEAST_PIECE, int(CATCH_UP_SHARE * self._step / self._per_token))

    def end(self) -> None:
        self._ended = self.now()

    def evaluated(self, n_tokens: int, started: float) -> None:
        self._per_token = _faded(self._per_token, (self.now() - started) / n_tokens)


def _faded(before: float, now: float) -> float:
    return FADING * before + (1 - FADING) * now if before else now
