"""Gets proposals for each sequence from the sources, and keeps as many tokens as are worth their
time."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile

from specllama.engine import system
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.sequences import Sequence as Text
from specllama.engine.worker.speculation.pace import LastAsk, Offer, Pace, ProposalRecord
from specllama.engine.worker.speculation.source import AnySource, Ask, SourceState

# ---- The time that a source takes to find tokens, by the number of texts in a call.


FADING = 0.8


class ProposalCost:
    """Estimates the time of a source from its last calls. Tokens are found one after the other."""

    def __init__(self) -> None:
        self._each: dict[int, float] = {}  # seconds per token, by number of texts
        self._without_result: dict[int, float] = {}  # seconds of calls that find nothing

    def each(self, n_texts: int) -> float | None:
        """Seconds to find one more token for each of `n_texts` texts; None if unknown."""
        if not (self._each or self._without_result):
            return None
        return max(_nearest(self._each, n_texts), _nearest(self._without_result, n_texts))

    def all(self, n_texts: int, n: int) -> float:
        """Estimated seconds of a call for `n_texts` texts that finds up to `n` tokens of each."""
        return max(_nearest(self._without_result, n_texts), n * _nearest(self._each, n_texts))

    def is_guess(self, n_texts: int) -> bool:
        """True if no call had that many texts."""
        return n_texts > max((*self._each, *self._without_result), default=0)

    def found(self, n_texts: int, n: int, seconds: float) -> None:
        """Record a call for `n_texts` texts that found at most `n` tokens of each."""
        found = self._each if n else self._without_result
        each = seconds / max(1, n)
        before = found.get(n_texts, each)
        found[n_texts] = FADING * before + (1 - FADING) * each


def _nearest(seconds: dict[int, float], n_texts: int) -> float:
    if not seconds:
        return 0.0
    return seconds[min(seconds, key=lambda n: abs(n - n_texts))]


GRAMMAR = "grammar"
"""The source of a constraint's likely tokens."""
MOST = 64
"""Maximum number of tokens requested from a source."""
CHEAP = 0.03
"""A source that takes at most this part of a step is always asked for all its tokens."""


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A request for up to `n` proposed tokens for one sequence. Fewer than `n_min` are useless; a
    draft model only proposes tokens with a probability of at least `p_min`.

    `forced` tokens are certain, `likely` ones are a constraint's suggestions after them. With
    `forced` tokens, no source is used."""

    sequence: Text
    record: ProposalRecord
    n: int
    n_min: int = 0
    p_min: float = 0.0
    forced: Sequence[int] = ()
    likely: Sequence[int] = ()

    def ask(self, source: AnySource, n: int) -> Ask[SourceState]:
        """The request to `source` for `n` tokens."""
        states, text = self.record.states, self.sequence
        if source.name not in states:
            states[source.name] = source.begin(text.tokens, text.text_key)
        return Ask(states[source.name], n, self.p_min)


class Proposing:
    """The proposals of all sequences. Belongs to the thread that steps.

    For each sequence, the first of `sources` with a worthwhile proposal is used.
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
        """`limits`: the minimum and maximum number of tokens of sources that don't apply such
        limits themselves. Sources in `only_texts` can't be used for texts with media."""
        self._sources = {source.name: source for source in sources}
        self._pace = pace
        self._limits = limits or {}
        self._only_texts = only_texts
        self._clock = clock or system.now
        self._finding = {name: ProposalCost() for name in self._sources}

    @property
    def names(self) -> list[str]:
        """The names of the sources, in their order."""
        return list(self._sources)

    def propose(self, requests: Sequence[ProposalRequest], n_generating: int) -> None:
        """Set the proposed tokens of the sequences of `requests`, which are some of the
        `n_generating` sequences in the step."""
        open_requests: list[ProposalRequest] = []
        for request in requests:
            sequence = request.sequence
            sequence.proposed, sequence.n_forced = tuple(request.forced), len(request.forced)
            if not request.forced and request.n > 0:
                open_requests.append(request)
        self._suggest(requests, n_generating)
        for source in self._sources.values():
            open_requests = [request for request in open_requests if not request.sequence.proposed]
            if not open_requests:
                return
            self._ask_source(source, open_requests, n_generating)

    def _suggest(self, requests: Sequence[ProposalRequest], n_generating: int) -> None:
        likely = [replace(request, n_min=0) for request in requests if request.likely]
        self._choose(GRAMMAR, likely, [list(request.likely) for request in likely], n_generating)

    def _ask_source(
        self, source: AnySource, requests: Sequence[ProposalRequest], n_generating: int
    ) -> None:
        name = source.name
        n_min, n_max = self._limits.get(name, (0, MOST))
        requests = [
            replace(request, n_min=max(request.n_min, n_min))
            for request in requests
            if not (request.sequence.spans and name in self._only_texts)
        ]
        if not requests:
            return
        most = [min(request.n, n_max, MOST) for request in requests]
        finding = self._finding[name]
        each = finding.each(len(requests))
        usual = self._pace.usual(n_generating)
        is_cheap = each is not None and finding.all(len(requests), max(most)) <= CHEAP * usual
        if each is None and not self._pace.is_full:  # measure with one token of one text
            most = [max(1, requests[0].n_min)] + [0] * (len(requests) - 1)
        elif not is_cheap:
            offers = [
                Offer(request.record, name, n, request.n_min)
                for request, n in zip(requests, most, strict=True)
            ]
            most = self._pace.choose(n_generating, offers, each or 0.0)
            if not self._pace.is_full and finding.is_guess(sum(map(bool, most))):
                most = [
                    min(n, max(1, request.n_min)) for request, n in zip(requests, most, strict=True)
                ]
        if not any(most):
            return
        started = self._clock()
        asked = [
            (request, request.ask(source, n))
            for request, n in zip(requests, most, strict=True)
            if n
        ]
        proposals = [_before_media(each) for each in source.propose([ask for _, ask in asked])]
        taken = self._clock() - started
        if not is_cheap:  # the first call with a text reads it, too
            self._pace.charge(taken - (each or 0.0) * max(most))
        ready = self._ready(name, asked, proposals, taken)
        if is_cheap:
            found = [tokens for _, _, tokens in ready]
            self._choose(name, [request for request, _, _ in ready], found, n_generating)
            return
        for request, n, tokens in ready:
            if len(tokens) >= max(1, request.n_min):
                self._set(name, request, tokens[:n], n)
            else:  # counts as rejected: the time is spent
                self._pace.verified(request.record, name, 1, 0)

    def _ready(
        self,
        name: str,
        asked: Sequence[tuple[ProposalRequest, Ask[SourceState]]],
        proposals: Sequence[list[int]],
        taken: float,
    ) -> list[tuple[ProposalRequest, int, list[int]]]:
        """The requests whose texts the source has read completely, with its proposals. The call
        took `taken` seconds."""
        ready: list[tuple[ProposalRequest, int, list[int]]] = []
        for (request, ask), tokens in zip(asked, proposals, strict=True):
            if ask.state.is_unread:
                self._pace.put_off(request.record, name)
            else:
                ready.append((request, ask.n, tokens))
        if len(ready) == len(asked):  # otherwise reading texts is a part of the time
            self._finding[name].found(len(ready), max(map(len, proposals)), taken)
        return ready

    def _choose(
        self,
        name: str,
        requests: Sequence[ProposalRequest],
        found: Sequence[list[int]],
        n_generating: int,
    ) -> None:
        """Propose as many of the `found` tokens as are worth their time."""
        some = [
            (request, tokens) for request, tokens in zip(requests, found, strict=True) if tokens
        ]
        if not some:
            return
        offers = [
            Offer(request.record, name, len(tokens), request.n_min) for request, tokens in some
        ]
        numbers = self._pace.choose(n_generating, offers)
        for (request, tokens), n in zip(some, numbers, strict=True):
            self._set(name, request, tokens[:n])

    def _set(
        self, name: str, request: ProposalRequest, tokens: Sequence[int], n_asked: int = 0
    ) -> None:
        if tokens and len(tokens) >= request.n_min:
            request.sequence.proposed += tuple(tokens)
            request.record.asked = LastAsk(name, n_asked, request.record.states.get(name))

    def verified(
        self, record: ProposalRecord, chunk: Chunk, n_accepted: int, *, is_refuted: bool
    ) -> None:
        """Record that the first `n_accepted` of the proposed tokens of `chunk` are confirmed. The
        next one is wrong if `is_refuted`, otherwise unknown."""
        n_forced = chunk.n_forced
        asked, record.asked = record.asked, None
        n_proposed = len(chunk.proposed) - n_forced
        if asked is None or n_proposed <= 0:
            return
        name, n_asked, state = asked
        n_accepted = max(0, n_accepted - n_forced)
        n_known = n_proposed if is_refuted else n_accepted
        if n_accepted == n_proposed < n_asked:
            n_known += 1  # the source had no more: counts as rejected
        self._pace.verified(record, name, n_known, n_accepted)
        if state is not None:
            state.verified(n_proposed, n_accepted)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


def _before_media(tokens: list[int]) -> list[int]:
    """The tokens before the first one of a medium."""
    return list(takewhile(lambda token: token >= 0, tokens))
