"""A draft model: a small model whose likeliest tokens are proposed to the large one.

It drafts for all sequences together, one token of each in a decode. A text that is new to the draft
model, such as a long prompt, is evaluated in pieces over several steps, so that other sequences'
steps stay short. Nothing is proposed for the text until all of it is evaluated.
"""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence
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
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.scheduling.memory import MIN_COPY
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenArray, TokenBuffer, common_prefix

log = logging.getLogger("specllama.engine.worker.speculation.draft_model")

# ---- The texts that a draft model has evaluated, one in each sequence of its context.
#
# A new text continues from the longest cached beginning of any text with the same key, so only the
# rest is evaluated.


def _empty() -> TokenBuffer:
    return TokenBuffer(np.empty(0, np.int32))


@dataclass(eq=False)
class DraftPosition:
    """A sequence of the context, and the text that is evaluated in it. `state` is the text that it
    is used for; None if it is only kept as cache."""

    number: int
    text: TokenBuffer = field(default_factory=_empty)
    key: Key = ()
    state: "DraftState | None" = None
    used: int = 0  # the higher, the later

    def __len__(self) -> int:
        return len(self.text)


class DraftState(SourceState):
    """A text that tokens are drafted for, and its place in `cache`. Another text may take the place
    in calls without this text."""

    place: DraftPosition | None = None
    asked = -1, 0  # number of the last call with this text, and its length then

    def __init__(self, cache: "DraftCache", tokens: TokenBuffer, key: Key) -> None:
        super().__init__(tokens, key)
        self._cache = cache

    def detach(self) -> None:
        self._cache.detach(self)


class DraftCache:
    """The places of `context`, which only this cache uses. If it is `unified`, copying a prefix
    costs nothing."""

    def __init__(self, context: Context, *, unified: bool) -> None:
        self._context = context
        self._least_copy = 1 if unified else MIN_COPY
        self._places = [DraftPosition(number) for number in range(context.n_seq)]
        self._clock = 0
        self.given_up: set[DraftState] = set()
        """Texts without room in the cache; they are retried when another text is detached."""

    def place(self, state: DraftState, others: Container[DraftState]) -> DraftPosition:
        """The place of a text, with its longest cached prefix, always without the last token, whose
        logits are needed. A new text may take its place from any text that isn't in `others`."""
        place = self._new(state, others) if state.place is None else state.place
        self._clock += 1
        place.used = self._clock
        self._cut(place, self._usable(place, state.tokens.view()))
        return place

    def _usable(self, place: DraftPosition, tokens: TokenArray) -> int:
        """The number of `tokens`, without the last one, that are already evaluated at `place`."""
        n = min(common_prefix(place.text.view(), tokens), len(tokens) - 1)
        return n if self._context.is_cuttable or n == len(place) else 0

    def _new(self, state: DraftState, others: Container[DraftState]) -> DraftPosition:
        free = [each for each in self._places if each.state is None]
        free = free or [each for each in self._places if each.state not in others]
        tokens, same = state.tokens.view(), [p for p in self._places if p.key == state.key]
        alike = {each.number: self._usable(each, tokens) for each in same}
        place = max(free, key=lambda each: (alike.get(each.number, 0), not len(each), -each.used))
        if place.state is not None:
            place.state.place = None
        source = max(self._places, key=lambda each: alike.get(each.number, 0))
        n = alike.get(source.number, 0)
        if source is not place and n >= alike.get(place.number, 0) + self._least_copy:
            self.clear(place)
            if self._context.copy(source.number, place.number, n):
                place.text.extend(source.text.view(0, n))
        elif place.key != state.key:
            self.clear(place)
        place.state, place.key = state, state.key
        state.place = place
        return place

    def _cut(self, place: DraftPosition, n: int) -> None:
        """Keep the first `n` tokens; no token if the memory can't be cut there."""
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
        """The state for `rewind`; None where it isn't needed."""
        return None if self._context.is_cuttable else self._context.save(place.number)

    def rewind(self, place: DraftPosition, n: int, state: StateArray | None) -> None:
        """Cut memory that can't be cut by positions to its first `n` tokens; `state` was saved
        after them. Other memory is cut later, when the rejected tokens are known."""
        if self._context.is_cuttable or n == len(place):
            return
        if state is not None and self._context.rewind(place.number, n, state):
            place.text.remove(n, len(place))
        else:
            self.clear(place)

    def make_room(self, asking: Iterable[DraftPosition]) -> None:
        """Drop the least recently used text that nothing is drafted for. If there is none, drop the
        longest text of `asking`, and add it to `given_up`, as evaluating it again would fail
        again."""
        idle = [each for each in self._places if each.state is None and len(each)]
        place = min(idle, key=lambda each: each.used) if idle else max(asking, key=len)
        self.clear(place)
        if place.state is not None:
            self.given_up.add(place.state)

    def detach(self, state: DraftState) -> None:
        """Keep the text as cache until its place is needed."""
        if (place := state.place) is not None:
            place.state = state.place = None
        self.given_up.clear()  # there is room again


N_LIKELY: Final = 10
"""The probability of the likeliest token is computed among so many tokens, as in llama-server."""
NEAR: Final = 16.0
"""Logits lower than the highest one by more than this are ignored in that probability."""
CATCH_UP_SHARE: Final = 0.5
"""Part of a step's time that may be spent on texts that are new to the draft model."""
LEAST_PIECE, FIRST_PIECE = 32, 128
"""Tokens of new texts in a step: the minimum, and the number before their time is measured."""
FEW: Final = 8
"""A text that has grown by up to so many tokens, as in a step, isn't new."""
FADING: Final = 0.8


class _Draft(NamedTuple):
    """The tokens `found` for `ask`; the text is evaluated at `place`."""

    ask: Ask[DraftState]
    place: DraftPosition
    found: list[int]


class DraftModel:
    """Proposes the tokens of a draft model. `n_vocab` is the vocabulary size of the target model;
    at most the first `limit` tokens of a text are evaluated.

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
        self._eog = self._model.eog
        self._n_known = min(n_vocab, self._model.n_vocab)
        self._limit = min(limit, context.n_ctx_seq)
        self._pace = _Pace(clock or system.now)
        self._is_open = True

    def begin(self, tokens: TokenBuffer, key: Key) -> DraftState:
        return DraftState(self._cache, tokens, key)

    def propose(self, asks: Sequence[Ask[DraftState]]) -> list[list[int]]:
        proposals: list[list[int]] = [[] for _ in asks]
        for ask in asks:
            ask.state.is_unread = False
        if not self._is_open:
            return proposals
        try:
            self._propose(asks, proposals)
        except Exception as error:
            reason = str(error) if isinstance(error, BackendError) else repr(error)
            log.error("the draft model failed; generation continues without it: %s", reason)
            self.close()
            return [[] for _ in asks]
        return proposals

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._context.close()
            self._model.close()

    # ---- a step ------------------------------------------------------------------------------

    def _propose(self, asks: Sequence[Ask[DraftState]], proposals: list[list[int]]) -> None:
        wanted = [each for each in zip(asks, proposals, strict=True) if self._is_wanted(each[0])]
        states = {ask.state for ask, _ in wanted}
        self._pace.begin(states)
        drafts = [_Draft(ask, self._cache.place(ask.state, states), found) for ask, found in wanted]
        before = [len(draft.place) for draft in drafts]
        try:
            rows = self._evaluate(drafts)
            whole = {draft.ask.state for draft, _ in rows}
            for (ask, place, _), n in zip(drafts, before, strict=True):
                ask.state.is_unread = ask.state not in whole and len(place) > n
            self._draft(rows)
        except OutOfCellsError:
            # Make room for the next step. The tokens drafted so far stay valid.
            self._cache.make_room(draft.place for draft in drafts)
        self._pace.end()

    def _is_wanted(self, ask: Ask[DraftState]) -> bool:
        fits = 0 < len(ask.state.tokens) <= self._limit
        return ask.n > 0 and fits and ask.state not in self._cache.given_up

    def _evaluate(self, drafts: Sequence[_Draft]) -> list[tuple[_Draft, int]]:
        """Evaluate the new tokens of the texts, as far as time allows, the shortest ones first.
        Returns the texts that are completely evaluated, with the indices of their logits in the
        batch."""
        n_new, n_left = self._pace.piece, self._context.n_batch
        taken: list[tuple[_Draft, TokenArray]] = []
        for draft in sorted(drafts, key=lambda each: len(each.ask.state.tokens) - len(each.place)):
            tokens, n = draft.ask.state.tokens, len(draft.place)
            piece = tokens.view(n, min(len(tokens), n + min(n_left, FEW + n_new)))
            if not len(piece) or piece.max() >= self._n_known:
                continue  # the draft model doesn't have such tokens
            n_left, n_new = n_left - len(piece), n_new - max(0, len(piece) - FEW)
            taken.append((draft, piece))
        if not taken:
            return []
        batch = self._context.batch
        batch.clear()
        rows: list[tuple[_Draft, int]] = []
        # llama.cpp evaluates separate caches together only in the order of their ids.
        for draft, piece in sorted(taken, key=lambda each: each[0].place.number):
            n = len(draft.place)
            is_whole = n + len(piece) == len(draft.ask.state.tokens)
            output = batch.add(piece, n, draft.place.number, output=is_whole)
            if is_whole:
                rows.append((draft, output))
        started = self._pace.now()
        self._context.decode()
        for draft, piece in taken:
            draft.place.text.extend(piece)
        if batch.n_tokens >= LEAST_PIECE:
            self._context.synchronize()
            self._pace.evaluated(batch.n_tokens, started)
        return rows

    def _draft(self, rows: Sequence[tuple[_Draft, int]]) -> None:
        """Draft tokens for `rows` until no text needs more."""
        behind = [(each.place, len(each.place), self._cache.save(each.place)) for each, _ in rows]
        try:
            while rows:
                rows = self._draft_next(rows)
        finally:
            for place, n, state in behind:
                self._cache.rewind(place, n, state)

    def _draft_next(self, rows: Sequence[tuple[_Draft, int]]) -> list[tuple[_Draft, int]]:
        """Choose the next token for each of `rows`, and evaluate it if another one may follow.
        Returns the rows of these."""
        more: list[tuple[_Draft, int]] = []
        for draft, output in rows:
            ask, place, found = draft
            token = likeliest(self._context.logits(output), ask.p_min)
            if token is None or token >= self._n_known:
                continue
            found.append(token)
            is_last = len(found) == ask.n or token in self._eog
            if not is_last and len(place) < self._limit:
                more.append((draft, token))
        if not more:
            return []
        batch = self._context.batch
        batch.clear()
        indices = batch.add_singles(
            [token for _, token in more],
            [len(draft.place) for draft, _ in more],
            [draft.place.number for draft, _ in more],
            [True] * len(more),
        )
        self._context.decode()
        for draft, token in more:
            draft.place.text.append(token)
        return [(draft, index) for (draft, _), index in zip(more, indices, strict=True)]


def likeliest(logits: npt.NDArray[np.float32], p_min: float) -> int | None:
    """The token with the highest logit, unless its probability among the likeliest ones is below
    `p_min`; None as well if the logits aren't finite."""
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
    """Limits the tokens of new texts in a step to `CATCH_UP_SHARE` of the time of the target
    model's step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self.piece = FIRST_PIECE
        self._per_token = 0.0  # seconds
        self._step = 0.0  # seconds of the target model's step
        self._ended = 0.0
        self._n_call = 0

    def begin(self, states: Collection[DraftState]) -> None:
        """Begin a call for `states`. Estimates the target model's step time: the time since the
        last call, divided by the largest growth of a text that was in both calls, which bounds the
        number of steps."""
        grown = (len(s.tokens) - s.asked[1] for s in states if s.asked[0] == self._n_call)
        n_steps = max(grown, default=0)
        if n_steps > 0:
            self._step = _faded(self._step, (self.now() - self._ended) / n_steps)
        self._n_call += 1
        for state in states:
            state.asked = self._n_call, len(state.tokens)
        if self._per_token and self._step:
            self.piece = max(LEAST_PIECE, int(CATCH_UP_SHARE * self._step / self._per_token))

    def end(self) -> None:
        self._ended = self.now()

    def evaluated(self, n_tokens: int, started: float) -> None:
        self._per_token = _faded(self._per_token, (self.now() - started) / n_tokens)


def _faded(before: float, now: float) -> float:
    return FADING * before + (1 - FADING) * now if before else now
