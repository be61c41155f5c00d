"""Chooses how many proposed tokens a step evaluates.

Each further row costs time, and yields a token with the probability that it is confirmed. The
number of rows with the most expected tokens per second is chosen, and the most probable tokens fill
them. The probabilities are measured here, by sequence and source;
`engine.worker.scheduling.step_clock` estimates the cost of rows. A source that isn't worth its time
is tried again, less and less often; all trials together may take only a small part of the time
(`TRIALS`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter, mul
from typing import NamedTuple

from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.speculation.source import SourceState

# ---- The acceptance rate of proposals by position, of one sequence or of all. Older measurements
# fade.


FADING = 0.85
"""The weight of a verification decays by this factor with each later one of its sequence, as a text
starts and stops copying earlier text within a few steps."""
FADING_OF_ALL = 0.98
WEIGHT = 1.0
"""The weight of the prior expectation, in verifications."""
AT_FIRST = 0.6
"""The assumed acceptance of a source without measurements: high enough to try it."""


class Acceptance:
    """The probability that each token of a proposal is confirmed, given that the tokens before it
    are."""

    def __init__(self, fading: float) -> None:
        self._fading = fading
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        """Record that the first `n_accepted` of `n_proposed` tokens were confirmed, and the next
        one, if any, was not."""
        n = len(self._tried)
        self._tried += [0.0] * (n_proposed - n)
        self._accepted += [0.0] * (n_proposed - n)
        for position in range(min(n_proposed, n_accepted + 1)):
            self._tried[position] = self._fading * self._tried[position] + 1
            hit = float(position < n_accepted)
            self._accepted[position] = self._fading * self._accepted[position] + hit

    def age(self, factor: float) -> None:
        """Reduce the weight of all measurements by `factor`."""
        self._tried = [factor * each for each in self._tried]
        self._accepted = [factor * each for each in self._accepted]

    def chances(self, n: int, expected: list[float] | None = None) -> list[float]:
        """The probability at each of `n` positions, from measurements and the prior: the mean of
        `expected` there and of the result of the position before."""
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


# ---- The number of tokens that is worth its time.


GAIN = 1.1
"""Minimum expected speedup by proposals: measurements are never exact."""
SKIPPED = 1024
"""Trials of a source that are skipped, because it is too slow to ever be worth it, before one is
made nevertheless."""
STRETCH = 1.5
"""Maximum factor by which proposals may lengthen a step that misses its target anyway."""
SOON, LATE = 4, 64
"""Steps of a sequence from a failed proposal to the next trial: they double each time, from `SOON`
up to `LATE`."""
TRIALS = 0.015
"""Maximum part of the time for trials."""
PLAIN = 128
"""After so many steps with proposals, one step has none, to measure the time without them."""
NEW = 16
"""Steps of a sequence before its first trial of a source that isn't worth its time for other
sequences."""


class _Trials:
    """The history of one source with one sequence."""

    def __init__(self) -> None:
        self.acceptance = Acceptance(FADING)
        self.wait = self.n_steps = NEW
        """The steps between trials, and the remaining steps to the next one."""
        self.n_worth = 0
        """Consecutive steps in which the source was worth its time."""
        self.is_put_off = False
        """True if a trial has begun, but the source wasn't ready."""

    def worth(self) -> None:
        self.n_worth += 1
        self.is_put_off = False
        if self.n_worth >= SOON:
            self.wait = self.n_steps = SOON

    def is_due(self) -> bool:
        """Count a step in which the source isn't worth its time. True if a trial is due."""
        self.n_worth = 0
        self.n_steps -= 1
        return self.n_steps <= 0

    def begin_trial(self) -> None:
        """Begin a trial. Reduces the weight of measurements by the time since the last one."""
        if self.is_put_off:
            self.is_put_off = False
            return
        self.acceptance.age(FADING ** (self.wait / SOON))
        self.wait = self.n_steps = min(2 * self.wait, LATE)


class LastAsk(NamedTuple):
    """The source of the current proposal; the number of tokens requested from it (0: all it has);
    and its state (None for a constraint)."""

    source: str
    n: int
    state: SourceState | None


class ProposalRecord:
    """The acceptance of all proposals for one sequence so far, and the states of the sources for
    its text."""

    def __init__(self) -> None:
        self.asked: LastAsk | None = None
        self._trials: dict[str, _Trials] = {}  # by source
        self.states: dict[str, SourceState] = {}
        """The states by source, of the sources used since the sequence has its slot."""

    def of(self, source: str) -> _Trials:
        if source not in self._trials:
            self._trials[source] = _Trials()
        return self._trials[source]

    def detach(self) -> None:
        """Drop all source states: the sequence has left its slot."""
        for state in self.states.values():
            state.detach()
        self.states.clear()


@dataclass(frozen=True, slots=True)
class Offer:
    """`n` tokens that `source` has for the sequence of `record`. Fewer than `n_min` tokens are
    useless."""

    record: ProposalRecord
    source: str
    n: int
    n_min: int = 0

    @property
    def trials(self) -> _Trials:
        return self.record.of(self.source)


class Pace:
    """Chooses the number of proposed tokens by the `clock` and the measured acceptance. `target` is
    the time limit of a step in seconds; 0 for no limit. If it `is_full`, all tokens that have room
    in the batch are chosen, whatever they cost."""

    def __init__(
        self, clock: StepClock, target: float, n_batch: int, *, is_full: bool = False
    ) -> None:
        self._clock = clock
        self._target = target
        self._n_batch = n_batch
        self.is_full = is_full
        self._of_all: dict[str, Acceptance] = {}  # by source
        self._since_plain = 0  # steps with proposals since the last one without
        self._skipped: dict[str, int] = {}  # consecutive skipped trials, by source
        self._trial_seconds = 0.0  # seconds of trials, minus what steps have earned since

    # ---- choosing ------------------------------------------------------------------------

    def choose(
        self, n_generating: int, offers: Sequence[Offer], seconds_each: float = 0.0
    ) -> list[int]:
        """The number of tokens of each of `offers` to evaluate in a step with `n_generating`
        sequences. `seconds_each`: the time to find one more token for all of them together; 0 if
        the tokens are already found."""
        if self.is_full:
            return self._all_of(n_generating, offers)
        chosen = self._worth(n_generating, offers, seconds_each)
        for at, offer in enumerate(offers):
            trials = offer.trials
            if chosen[at]:
                trials.worth()
            elif (
                trials.is_due()
                and offer.n
                and self._trial_seconds <= 0
                and not self._cannot_pay(n_generating, offer, seconds_each)
            ):
                trials.begin_trial()
                chosen[at] = min(offer.n, max(1, offer.n_min))
                self._trial_seconds += self._price(n_generating, chosen[at], seconds_each)
        return [n if n >= offer.n_min else 0 for n, offer in zip(chosen, offers, strict=True)]

    def _all_of(self, n_generating: int, offers: Sequence[Offer]) -> list[int]:
        chosen, room = [], max(0, self._n_batch - n_generating)
        for offer in offers:
            n = min(offer.n, room)
            chosen.append(n if n >= offer.n_min else 0)
            room -= chosen[-1]
        return chosen

    def _cannot_pay(self, n_generating: int, offer: Offer, seconds_each: float) -> bool:
        """True if the source is too slow to be worth it even at 100 % acceptance and without any
        cost of rows. Every `SKIPPED`-th time per sequence it is False nevertheless, since times
        change."""
        usual = self.usual(n_generating)
        if usual + offer.n * seconds_each < (1 + offer.n) * usual / GAIN or not usual:
            self._skipped.pop(offer.source, None)
            return False
        n = self._skipped[offer.source] = self._skipped.get(offer.source, 0) + 1
        return n % (SKIPPED * n_generating) != 0

    def _price(self, n_generating: int, n: int, seconds_each: float) -> float:
        """Estimated seconds that a trial of `n` tokens adds to a step."""
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
        """The number of `gains` (sorted, the largest first) that are worth their time."""
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
        """Estimated seconds of a step of `n_generating` sequences without proposals; 0 if
        unknown."""
        return self._clock.decode_seconds(n_generating)

    def is_early_faster(self, n: int, n_generating: int) -> bool:
        """True if a separate decode of `n` forced tokens takes no longer than the steps that it
        saves `n_generating` sequences. It needs no logits: on a CPU it is nearly always faster, on
        a GPU with enough tokens."""
        if not n:
            return True
        return self._clock.rows_seconds(n) * n_generating <= n * self.usual(n_generating)

    # ---- learning ------------------------------------------------------------------------

    def verified(
        self, record: ProposalRecord, source: str, n_proposed: int, n_accepted: int
    ) -> None:
        """Record that `n_accepted` of `n_proposed` evaluated tokens were confirmed."""
        if n_proposed:
            record.of(source).acceptance.verified(n_proposed, n_accepted)
            self._all(source).verified(n_proposed, n_accepted)

    def charge(self, seconds: float) -> None:
        """Add to the time of trials: a source took `seconds` longer than estimated."""
        self._trial_seconds = max(0.0, self._trial_seconds + seconds)

    def put_off(self, record: ProposalRecord, source: str) -> None:
        """Record that the source wasn't ready. Its trial isn't counted, and is repeated as soon as
        there is time."""
        trials = record.of(source)
        trials.is_put_off, trials.n_steps = True, 0

    def stepped(self, n_proposed: int, seconds: float) -> None:
        """Record that a step without prompts, with `n_proposed` proposed tokens, has taken
        `seconds`."""
        self._trial_seconds = max(0.0, self._trial_seconds - TRIALS * seconds)
        self._since_plain = self._since_plain + 1 if n_proposed else 0

    def _all(self, source: str) -> Acceptance:
        return self._of_all.setdefault(source, Acceptance(FADING_OF_ALL))

    def _chances(self, offer: Offer) -> list[float]:
        expected = self._all(offer.source).chances(offer.n)
        return offer.trials.acceptance.chances(offer.n, expected)
