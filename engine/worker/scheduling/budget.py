"""The prefill budget: how many prompt tokens a step may have, so that generating sequences get
their next tokens in time.

Of the chunk sizes whose steps keep the target, it takes the one with the most prompt tokens per
second, as `engine.worker.scheduling.step_clock` knows them. Where no size keeps the target, the
smallest may be the worst for all: it takes the smallest one that gets on nearly as fast as the best
of a few.
"""

from specllama.engine.worker.scheduling.step_clock import FEW_ROWS, StepClock

MIN_TOKENS = 32
"""Least tokens of prompts in a step, however slow the machine is: fewer cost nearly as much."""
MIN_SHARE = 0.5
"""Prompts may add this part of the time that the step takes without them, even if the target is
missed: on a machine that can't meet it, prompts go on nevertheless."""
HARDLY = 1.15
"""A step that takes this many times as long as it may is hardly longer: worth it if it has as many
times as many tokens a second."""
KNEE, LATE_TOKENS = 0.95, 128
"""Where no size keeps the target, a step has at most so many tokens of prompts, and prompts get at
least this part of the most tokens per second that such steps reach."""
AIM = 0.9
"""A step is planned to take this part of the target: some take longer than the clock expects."""
BURST = 3
"""Prompts that arrive together and take no more than this many targets are evaluated in one step:
cutting them would make several gaps of one, and no sequence would wait less in all."""
LONE_SECONDS = 1.0
"""Longest step of prompts alone: a new request waits for its end, and so does a cancellation.
Beyond one micro-batch, a longer step computes nothing faster."""
UNKNOWN = 128
"""Tokens of a step of which nothing is known."""


class PrefillBudget:
    """The sizes of prompt chunks, by the `clock`.

    `target` is the time of a step with generating sequences, in seconds; 0 for no limit. Limits are
    at most `n_batch`; a step of prompts alone has at least `n_ubatch`. `length` is that of
    `StepClock`."""

    def __init__(self, clock: StepClock, target: float, *, n_batch: int, n_ubatch: int) -> None:
        self._clock = clock
        self._target = target
        self._n_batch = n_batch
        self._n_ubatch = min(n_batch, n_ubatch)
        least = min(MIN_TOKENS, n_batch)
        self._sizes = [n for n in clock.sizes if n == least or n > FEW_ROWS]

    def limit(self, n_generating: int, length: float) -> int:
        """Prompt tokens that the next step may have at most."""
        if not n_generating:
            return self._alone(length)
        if not self._target:
            return self._n_batch
        seconds = self._seconds(n_generating, length)
        if not seconds:
            return min(self._n_batch, UNKNOWN)
        return choose(seconds, self._most(n_generating))

    def burst(self, n_generating: int, length: float) -> int:
        """The same for prompts of which nothing has been evaluated yet, if it is enough for the
        whole of all of them."""
        if not (n_generating and self._target):
            return self._n_batch
        seconds = self._seconds(n_generating, length)
        within = [n for n, s in seconds.items() if s <= BURST * self._target]
        return max(within, default=0)

    def compute_seconds(self, n_generating: int, n: int, start: int) -> float:
        """The seconds to evaluate `n` tokens of a text from position `start` on, beside the
        generation of others; 0 if this is not known."""
        length = start + n / 2
        size = self._n_ubatch
        if n_generating and self._target:
            seconds = self._seconds(n_generating, length)
            size = choose(seconds, self._most(n_generating)) if seconds else size
        size = min(n, size)
        step = self._clock.seconds(n_generating, size, length)
        if step is None:
            return 0.0
        return (step - self._clock.decode_seconds(n_generating)) * n / size

    def seconds(self, n_prompt: int) -> float:
        """The seconds of a step with nothing but so many tokens of prompts; 0 if this is not
        known."""
        return self._clock.seconds(0, min(n_prompt, self._n_batch), 0) or 0.0

    def left(self, n_generating: int, seconds: float) -> float:
        """The seconds between two steps for other work on the device, if a step takes `seconds`:
        what it leaves of the target, and some in any case. Without a target it is as long as a step
        without prompts; if nobody waits for tokens, as long as the step."""
        if not n_generating:
            return seconds
        decode = self._clock.decode_seconds(n_generating)
        if not self._target:
            return decode
        return max(MIN_SHARE * decode, self._target - seconds)

    def _alone(self, length: float) -> int:
        each = self._clock.seconds(0, self._n_ubatch, length)
        if each is None:
            return self._n_ubatch
        return min(self._n_batch, self._n_ubatch * max(1, int(LONE_SECONDS / each)))

    def _seconds(self, n_generating: int, length: float) -> dict[int, float]:
        """The seconds of a step, by size; empty if nothing is known."""
        return self._clock.by_size(n_generating, self._sizes, length)

    def _most(self, n_generating: int) -> float:
        """Seconds that a step may take: the target, where it can be kept."""
        least = (1 + MIN_SHARE) * self._clock.decode_seconds(n_generating)
        return max(AIM * self._target, least)


def choose(seconds: dict[int, float], most: float) -> int:
    """The size with the most tokens per second of those that take at most `most` seconds, or one
    that takes hardly longer and gets on far better. If each takes longer, the smallest one with
    nearly the most tokens per second of those up to `LATE_TOKENS`."""
    rates = {n: n / each for n, each in seconds.items()}
    within = [n for n in seconds if seconds[n] <= most]
    if not within:
        small = [n for n in seconds if n <= LATE_TOKENS]
        enough = KNEE * max(rates[n] for n in small)
        return min(n for n in small if rates[n] >= enough)
    best = max(within, key=lambda n: (rates[n], n))
    near = [n for n, each in seconds.items() if n > best and each <= HARDLY * most]
    far_better = [n for n in near if rates[n] >= HARDLY * rates[best]]
    return max(far_better, key=lambda n: (rates[n], n), default=best)
