"""The texts that a draft model has evaluated: one in each sequence of its context.

A text goes on from the longest beginning that is there already, whoever's it was, so that only
what is new is evaluated. Only texts of the same key know of each other.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

import numpy as np

from specllama.engine.worker.backend import Context, StateArray
from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.scheduling.placement import MIN_COPY
from specllama.engine.worker.speculation.source import Ask
from specllama.engine.worker.tokens import TokenArray, TokenBuffer, common_prefix


def _empty() -> TokenBuffer:
    return TokenBuffer(np.empty(0, np.int32))


@dataclass(eq=False)
class Place:
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
        self._places = [Place(number) for number in range(context.n_seq)]
        self._by_id: dict[int, Place] = {}
        self._clock = 0

    def place(self, ask: Ask, others: Container[int] = ()) -> Place:
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

    def _usable(self, place: Place, tokens: TokenArray) -> int:
        """How many of `tokens`, the last one aside, needn't be evaluated again there."""
        n = min(common_prefix(place.text.view(), tokens), len(tokens) - 1)
        return n if self._context.is_cuttable or n == len(place) else 0

    def _new(self, ask: Ask, tokens: TokenArray, others: Container[int]) -> Place:
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

    def _cut(self, place: Place, n: int) -> None:
        """Keep the first `n` tokens; none if they can't be taken out one by one after all."""
        if n == len(place):
            return
        if n and self._context.remove(place.number, n):
            place.text.remove(n, len(place))
        else:
            self.clear(place)

    def clear(self, place: Place) -> None:
        self._context.remove(place.number, 0)
        place.text = _empty()

    def save(self, place: Place) -> StateArray | None:
        """What `back` needs; None where it needs nothing."""
        return None if self._context.is_cuttable else self._context.save(place.number)

    def back(self, place: Place, n: int, state: StateArray | None) -> None:
        """Keep the first `n` tokens of memory that can't be cut; `state` was saved behind them.
        Other memory is cut when it is known what was wrong."""
        if self._context.is_cuttable or n == len(place):
            return
        if state is not None and self._context.rewind(place.number, n, state):
            place.text.remove(n, len(place))
        else:
            self.clear(place)

    def make_room(self, asking: Iterable[Place]) -> int | None:
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
