"""The number of proposed tokens that a step evaluates: as many as pay.

A row more costs time, and gives a token with the chance that it is confirmed. Of all numbers of
rows, the one with the most expected tokens per second is taken; which tokens they are follows from
their chances. The chances are measured here, by sequence and source; what rows cost says
`engine.worker.scheduling.step_clock`. A source that doesn't pay is tried again, ever more seldom;
trials of all sources and sequences together may take a small part of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter, mul
from typing import NamedTuple

from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.speculation.source import SourceState

# ---- How often proposals are right: measured by position, fading, for one sequence or for all.


FADING = 0.85
"""What a verification still counts when the next one of its sequence comes: a text that copies
begins and ends to do so within a few steps."""
FADING_OF_ALL = 0.98
WEIGHT = 1.0
"""What is expected counts as much as so many verifications."""
AT_FIRST = 0.6
"""Of a source that nothing was measured of: enough to try it."""


class Acceptance:
    """The chance that the tokens of a proposal are confirmed, each if those before it were."""

    def __init__(self, fading: float) -> None:
        self._fading = fading
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        """So many were confirmed; the one behind these, if there was one, was not."""
        n = len(self._tried)
        self._tried += [0.0] * (n_proposed - n)
        self._accepted += [0.0] * (n_proposed - n)
        for position in range(min(n_proposed, n_accepted + 1)):
            self._tried[position] = self._fading * self._tried[position] + 1
            hit = float(position < n_accepted)
            self._accepted[position] = self._fading * self._accepted[position] + hit

    def age(self, factor: float) -> None:
        """Let what was measured count less."""
        self._tried = [factor * each for each in self._tried]
        self._accepted = [factor * each for each in self._accepted]

    def chances(self, n: int, expected: list[float] | None = None) -> list[float]:
        """For each of `n` positions, beside what is `expected` there. What was measured of the
        position before is expected as well."""
        found: list[float] = []
        last = AT_FIRST if expected is None else None
        for position in range(n):
            prior = last if expected is None else expected[position]
            if expected is not None and last is not None:
                prior = 0.5 * (expected[position] + last)
            assert prior is not None
            tried = accepted = 0.0
            if position < len(self._tried):
                tried, accepted = self._tried[position], self._accepted[position]
            last = (accepted + WEIGHT * prior) / (tried + WEIGHT)
            found.append(last)
        return found


# ---- How many of them pay.


GAIN = 1.1
"""Proposals have to promise so much more speed: what is measured is never exact."""
SPARED = 1024
"""Trials of a source that are spared, as finding takes too long, until one is made all the same."""
STRETCH = 1.5
"""Proposals may make a step so many times as long, where it misses its target anyway."""
SOON, LATE = 4, 64
"""Steps of a sequence from a proposal that failed to the next trial: they double, from the first
number up to the other one."""
TRIALS = 0.015
"""Part of the time that may go into trials."""
PLAIN = 128
"""Of so many steps with proposals, one goes without: what these save has to be known."""
NEW = 16
"""The same before the first trial, where the source has not paid for others."""


class _Trials:
    """The past of one source with one sequence."""

    def __init__(self) -> None:
        self.acceptance = Acceptance(FADING)
        self.wait = self.n_steps = NEW
        """Steps from trial to trial, and how many are left of these."""
        self.n_worth = 0
        """Steps in a row that it was worth its time."""
        self.is_put_off = False
        """True if a trial has begun, and the source wasn't ready."""

    def worth(self) -> None:
        self.n_worth += 1
        self.is_put_off = False
        if self.n_worth >= SOON:
            self.wait = self.n_steps = SOON

    def is_due(self) -> bool:
        """True if the time has come for a trial, though it isn't worth its time."""
        self.n_worth = 0
        self.n_steps -= 1
        return self.n_steps <= 0

    def begin_trial(self) -> None:
        """What was measured long ago says little of the next tokens."""
        if self.is_put_off:
            self.is_put_off = False
            return
        self.acceptance.age(FADING ** (self.wait / SOON))
        self.wait = self.n_steps = min(2 * self.wait, LATE)


class LastAsk(NamedTuple):
    """The source of what is proposed now; how many tokens it was asked for, 0 if for all that it
    knows; and its state, None for a constraint."""

    source: str
    n: int
    state: SourceState | None


class ProposalRecord:
    """What became of the proposals for one sequence so far, and what sources know of its text."""

    def __init__(self) -> None:
        self.asked: LastAsk | None = None
        self._trials: dict[str, _Trials] = {}  # by source
        self.states: dict[str, SourceState] = {}
        """By source, what it knows of the text; of those that were asked since it has its slot."""

    def of(self, source: str) -> _Trials:
        if source not in self._trials:
            self._trials[source] = _Trials()
        return self._trials[source]

    def leave(self) -> None:
        """The sequence has left its slot: what sources know of its text ends."""
        for state in self.states.values():
            state.leave()
        self.states.clear()


@dataclass(frozen=True, slots=True)
class Offer:
    """`n` tokens that `source` has for the sequence of `record`, of which less than `n_min` are of
    no use."""

    record: ProposalRecord
    source: str
    n: int
    n_min: int = 0

    @property
    def trials(self) -> _Trials:
        return self.record.of(self.source)


class Pace:
    """Chooses by the `clock` and by what became of proposals. `target` is that of a step in
    seconds, 0 for none."""

    def __init__(self, clock: StepClock, target: float, n_batch: int) -> None:
        self._clock = clock
        self._target = target
        self._n_batch = n_batch
        self._of_all: dict[str, Acceptance] = {}  # by source
        self._since_plain = 0  # steps with proposals since the last one without
        self._hopeless: dict[str, int] = {}  # trials in a row that were spared, by source
        self._debt = 0.0  # seconds that trials took, as far as they aren't made up for

    # ---- choosing ------------------------------------------------------------------------

    def choose(
        self, n_generating: int, offers: Sequence[Offer], seconds_each: float = 0.0
    ) -> list[int]:
        """How many tokens of each of `offers` are to be evaluated beside the `n_generating` that
        come anyway. `seconds_each` is what finding takes for the first token of all, for the
        second one, and so on; 0 if they are found already."""
        chosen = self._worth(n_generating, offers, seconds_each)
        for at, offer in enumerate(offers):
            trials = offer.trials
            if chosen[at]:
                trials.worth()
            elif (
                trials.is_due()
                and offer.n
                and self._debt <= 0
                and not self._is_hopeless(n_generating, offer, seconds_each)
            ):
                trials.begin_trial()
                chosen[at] = min(offer.n, max(1, offer.n_min))
                self._debt += self._price(n_generating, chosen[at], seconds_each)
        return [n if n >= offer.n_min else 0 for n, offer in zip(chosen, offers, strict=True)]

    def _is_hopeless(self, n_generating: int, offer: Offer, seconds_each: float) -> bool:
        """True if finding takes so long that it would not even pay if all were right and rows cost
        nothing. Now and then it is tried all the same, as times change."""
        usual = self.usual(n_generating)
        if usual + offer.n * seconds_each < (1 + offer.n) * usual / GAIN or not usual:
            self._hopeless.pop(offer.source, None)
            return False
        n = self._hopeless[offer.source] = self._hopeless.get(offer.source, 0) + 1
        return n % (SPARED * n_generating) != 0

    def _price(self, n_generating: int, n: int, seconds_each: float) -> float:
        """Seconds that a trial of `n` tokens is expected to take beside the step."""
        more = self._clock.proposal_seconds(n_generating, n) - self.usual(n_generating)
        return n * seconds_each + max(0.0, more)

    def _worth(self, n_generating: int, offers: Sequence[Offer], seconds_each: float) -> list[int]:
        gains: list[tuple[float, int, int]] = []  # tokens, the offer, its position
        for at, offer in enumerate(offers):
            chances = self._chances(offer)
            gains += [(g, at, position) for position, g in enumerate(accumulate(chances, mul))]
        gains.sort(key=itemgetter(0), reverse=True)
        del gains[max(0, self._n_batch - n_generating) :]
        n = self._number(n_generating, gains, seconds_each)
        chosen = [0] * len(offers)
        for _, at, _ in gains[:n]:
            chosen[at] += 1
        return chosen

    def _number(
        self, n_generating: int, gains: Sequence[tuple[float, int, int]], seconds_each: float
    ) -> int:
        """How many of `gains`, the largest in front, are worth their time."""
        if self._clock.n_decoded(n_generating) < 2 or self._since_plain >= PLAIN:
            return 0
        usual = self.usual(n_generating)
        most = max(self._target, STRETCH * usual) if self._target else float("inf")
        best, best_rate = 0, GAIN * n_generating / usual
        tokens = list(accumulate((gain for gain, _, _ in gains), initial=float(n_generating)))
        depths = list(accumulate((p + 1 for _, _, p in gains), max, initial=0))
        sizes = [n for n in self._clock.sizes if n < len(gains)] + [len(gains)] * bool(gains)
        for n in sizes:
            seconds = max(usual, self._clock.proposal_seconds(n_generating, n))
            seconds += seconds_each * depths[n]
            if seconds <= most and tokens[n] / seconds > best_rate:
                best, best_rate = n, tokens[n] / seconds
        return best

    def usual(self, n_generating: int) -> float:
        """Seconds of a step of so many sequences without proposals; 0 if this is not known."""
        return self._clock.decode_seconds(n_generating)

    def pays_early(self, n: int, n_generating: int) -> bool:
        """True if `n` forced tokens take no longer in a decode of their own than in the steps that
        they save `n_generating` sequences. These need no logits: on a CPU it nearly always pays, on
        a GPU if there are enough tokens."""
        if not n:
            return True
        return self._clock.rows_seconds(n) * n_generating <= n * self.usual(n_generating)

    # ---- learning ------------------------------------------------------------------------

    def verified(
        self, record: ProposalRecord, source: str, n_proposed: int, n_accepted: int
    ) -> None:
        """So many of a proposal's tokens that were evaluated are confirmed."""
        if n_proposed:
            record.of(source).acceptance.verified(n_proposed, n_accepted)
            self._all(source).verified(n_proposed, n_accepted)

    def owe(self, seconds: float) -> None:
        """A source has taken so much longer than was expected when it was chosen."""
        self._debt = max(0.0, self._debt + seconds)

    def put_off(self, record: ProposalRecord, source: str) -> None:
        """The source was asked and wasn't ready: nothing is learned, and it is asked again as soon
        as there is time for it."""
        trials = record.of(source)
        trials.is_put_off, trials.n_steps = True, 0

    def stepped(self, n_proposed: int, seconds: float) -> None:
        """A step without prompts has taken so long."""
        self._debt = max(0.0, self._debt - TRIALS * seconds)
        self._since_plain = self._since_plain + 1 if n_proposed else 0

    def _all(self, source: str) -> Acceptance:
        return self._of_all.setdefault(source, Acceptance(FADING_OF_ALL))

    def _chances(self, offer: Offer) -> list[float]:
        expected = self._all(offer.source).chances(offer.n)
        return offer.trials.acceptance.chances(offer.n, expected)
