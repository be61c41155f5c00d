"""Asks the sources what may come next in each sequence, and takes of it what pays."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile

from specllama.engine import system
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.sequences import Sequence as Text
from specllama.engine.worker.speculation.pace import LastAsk, Offer, Pace, ProposalRecord
from specllama.engine.worker.speculation.source import AnySource, Ask, SourceState

# ---- The time that a source takes to find tokens, by the number of texts that it is asked for.


FADING = 0.8


class ProposalCost:
    """Learns from what it took. One token is found behind the other."""

    def __init__(self) -> None:
        self._each: dict[int, float] = {}  # seconds for each token, by texts
        self._in_vain: dict[int, float] = {}  # seconds where nothing is found

    def each(self, n_texts: int) -> float | None:
        """Seconds for the first token of each of so many texts, for the second ones, and so on;
        None if nothing is known."""
        if not (self._each or self._in_vain):
            return None
        return max(_nearest(self._each, n_texts), _nearest(self._in_vain, n_texts))

    def all(self, n_texts: int, n: int) -> float:
        """Seconds for `n` tokens of each, or for none."""
        return max(_nearest(self._in_vain, n_texts), n * _nearest(self._each, n_texts))

    def is_guess(self, n_texts: int) -> bool:
        """True if it was never asked for so many."""
        return n_texts > max((*self._each, *self._in_vain), default=0)

    def found(self, n_texts: int, n: int, seconds: float) -> None:
        """`n` tokens at most were found for any of so many texts."""
        found = self._each if n else self._in_vain
        each = seconds / max(1, n)
        before = found.get(n_texts, each)
        found[n_texts] = FADING * before + (1 - FADING) * each


def _nearest(seconds: dict[int, float], n_texts: int) -> float:
    if not seconds:
        return 0.0
    return seconds[min(seconds, key=lambda n: abs(n - n_texts))]


GRAMMAR = "grammar"
"""The source of what a constraint makes likely."""
MOST = 64
"""Tokens that a source is asked for."""
CHEAP = 0.03
"""A source that takes no more than this part of a step is asked for all that it knows."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence that sources may propose up to `n` tokens for; less than `n_min` are of no use,
    and a draft model has to be as sure as `p_min`.

    `forced` are tokens that are bound to come, `likely` those that a constraint suggests behind
    them. They come instead."""

    sequence: Text
    record: ProposalRecord
    n: int
    n_min: int = 0
    p_min: float = 0.0
    forced: Sequence[int] = ()
    likely: Sequence[int] = ()

    def ask(self, source: AnySource, n: int) -> Ask[SourceState]:
        """What `source` is asked for `n` tokens."""
        states, text = self.record.states, self.sequence
        if source.name not in states:
            states[source.name] = source.begin(text.tokens, text.text_key)
        return Ask(states[source.name], n, self.p_min)


class Proposing:
    """The proposals of all sequences. Belongs to the thread that steps.

    The first of `sources` that has something worth its time for a sequence is heard.
    """

    def __init__(
        self,
        sources: Sequence[AnySource],
        pace: Pace,
        *,
        limits: Mapping[str, tuple[int, int]] | None = None,
        only_texts: Set[str] = frozenset(),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`limits` are the fewest and the most tokens of a source that doesn't keep them itself.
        Sources in `only_texts` can make nothing of a text with media."""
        self._sources = {source.name: source for source in sources}
        self._pace = pace
        self._limits = limits or {}
        self._only_texts = only_texts
        self._clock = clock or system.now
        self._finding = {name: ProposalCost() for name in self._sources}

    @property
    def names(self) -> list[str]:
        """Those of the sources, in their order."""
        return list(self._sources)

    def propose(self, wishes: Sequence[Wish], n_generating: int) -> None:
        """Set what is proposed for the sequences of `wishes`, which are some of those that get
        one token each anyway."""
        open_wishes: list[Wish] = []
        for wish in wishes:
            sequence = wish.sequence
            sequence.proposed, sequence.n_forced = tuple(wish.forced), len(wish.forced)
            if not wish.forced and wish.n > 0:
                open_wishes.append(wish)
        self._suggest(wishes, n_generating)
        for source in self._sources.values():
            open_wishes = [wish for wish in open_wishes if not wish.sequence.proposed]
            if not open_wishes:
                return
            self._hear(source, open_wishes, n_generating)

    def _suggest(self, wishes: Sequence[Wish], n_generating: int) -> None:
        likely = [replace(wish, n_min=0) for wish in wishes if wish.likely]
        self._take(GRAMMAR, likely, [list(wish.likely) for wish in likely], n_generating)

    def _hear(self, source: AnySource, wishes: Sequence[Wish], n_generating: int) -> None:
        name = source.name
        n_min, n_max = self._limits.get(name, (0, MOST))
        wishes = [
            replace(wish, n_min=max(wish.n_min, n_min))
            for wish in wishes
            if not (wish.sequence.spans and name in self._only_texts)
        ]
        if not wishes:
            return
        most = [min(wish.n, n_max, MOST) for wish in wishes]
        finding = self._finding[name]
        each = finding.each(len(wishes))
        usual = self._pace.usual(n_generating)
        is_cheap = each is not None and finding.all(len(wishes), max(most)) <= CHEAP * usual
        if each is None:  # one token of one text says what it takes
            most = [max(1, wishes[0].n_min)] + [0] * (len(wishes) - 1)
        elif not is_cheap:
            offers = [
                Offer(wish.record, name, n, wish.n_min)
                for wish, n in zip(wishes, most, strict=True)
            ]
            most = self._pace.choose(n_generating, offers, each)
            if finding.is_guess(sum(map(bool, most))):
                most = [min(n, max(1, wish.n_min)) for wish, n in zip(wishes, most, strict=True)]
        if not any(most):
            return
        started = self._clock()
        asked = [(wish, wish.ask(source, n)) for wish, n in zip(wishes, most, strict=True) if n]
        proposals = [_before_media(each) for each in source.propose([ask for _, ask in asked])]
        taken = self._clock() - started
        if not is_cheap:  # the first time with a text, that is read as well
            self._pace.owe(taken - (each or 0.0) * max(most))
        ready = self._ready(name, asked, proposals, taken)
        if is_cheap:
            found = [tokens for _, _, tokens in ready]
            self._take(name, [wish for wish, _, _ in ready], found, n_generating)
            return
        for wish, n, tokens in ready:
            if len(tokens) >= max(1, wish.n_min):
                self._set(name, wish, tokens[:n], n)
            else:  # as good as wrong: the time is spent
                self._pace.verified(wish.record, name, 1, 0)

    def _ready(
        self,
        name: str,
        asked: Sequence[tuple[Wish, Ask[SourceState]]],
        proposals: Sequence[list[int]],
        taken: float,
    ) -> list[tuple[Wish, int, list[int]]]:
        """Those of the wishes whose texts the source has read, with what it says. It took so many
        seconds for all of them."""
        ready: list[tuple[Wish, int, list[int]]] = []
        for (wish, ask), tokens in zip(asked, proposals, strict=True):
            if ask.state.is_unread:
                self._pace.put_off(wish.record, name)
            else:
                ready.append((wish, ask.n, tokens))
        if len(ready) == len(asked):  # else the time says nothing of what proposals take
            self._finding[name].found(len(ready), max(map(len, proposals)), taken)
        return ready

    def _take(
        self, name: str, wishes: Sequence[Wish], found: Sequence[list[int]], n_generating: int
    ) -> None:
        """Take of what was `found` the part that pays."""
        some = [(wish, tokens) for wish, tokens in zip(wishes, found, strict=True) if tokens]
        if not some:
            return
        offers = [Offer(wish.record, name, len(tokens), wish.n_min) for wish, tokens in some]
        numbers = self._pace.choose(n_generating, offers)
        for (wish, tokens), n in zip(some, numbers, strict=True):
            self._set(name, wish, tokens[:n])

    def _set(self, name: str, wish: Wish, tokens: Sequence[int], n_asked: int = 0) -> None:
        if tokens and len(tokens) >= wish.n_min:
            wish.sequence.proposed += tuple(tokens)
            wish.record.asked = LastAsk(name, n_asked, wish.record.states.get(name))

    def verified(
        self, record: ProposalRecord, chunk: Chunk, n_accepted: int, *, is_refuted: bool
    ) -> None:
        """So many of the tokens that were proposed in `chunk` are confirmed; the next one is wrong
        if it `is_refuted`, else nobody knows."""
        n_forced = chunk.n_forced
        asked, record.asked = record.asked, None
        n_proposed = len(chunk.proposed) - n_forced
        if asked is None or n_proposed <= 0:
            return
        name, n_asked, state = asked
        n_accepted = max(0, n_accepted - n_forced)
        n_known = n_proposed if is_refuted else n_accepted
        if n_accepted == n_proposed < n_asked:
            n_known += 1  # the source knew no further, which is as good as wrong
        self._pace.verified(record, name, n_known, n_accepted)
        if state is not None:
            state.verified(n_proposed, n_accepted)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


def _before_media(tokens: list[int]) -> list[int]:
    """The tokens in front of the first one that stands for a medium."""
    return list(takewhile(lambda token: token >= 0, tokens))
