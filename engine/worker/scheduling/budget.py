"""The prefill budget: the number of prompt tokens in a step, limited so that generating sequences
get their next tokens in time.

Among the chunk sizes that keep the target, the budget chooses the one with the most prompt tokens
per second, as estimated by `engine.worker.scheduling.step_clock`. If no size keeps the target, very
small chunks may delay all requests most: then it chooses the smallest size with nearly the best
rate of the sizes up to `LATE_TOKENS`.
"""

from specllama.engine.worker.scheduling.step_clock import FEW_ROWS, StepClock

MIN_TOKENS = 32
"""Minimum prompt tokens in a step, also on a slow machine: fewer cost nearly as much."""
MIN_SHARE = 0.5
"""Prompts may always lengthen a step by this part of its time without prompts, even if it misses
the target: on a machine that can't meet the target, prompts still progress."""
OVERRUN = 1.15
"""A step may exceed its limit by this factor if its rate of prompt tokens is higher by at least the
same factor."""
KNEE, LATE_TOKENS = 0.95, 128
"""If no size keeps the target, a step has at most `LATE_TOKENS` prompt tokens, and at least `KNEE`
of the best rate (tokens per second) among the sizes up to that."""
AIM = 0.9
"""A step is planned to take this part of the target: some steps take longer than estimated."""
BURST = 3
"""New prompts that together take at most this many times the target are evaluated in one step:
cutting them would make several gaps instead of one, without less waiting in total."""
LONE_SECONDS = 1.0
"""Longest step of prompts alone, in seconds: new requests and cancellations wait for its end. Steps
beyond one micro-batch are not faster per token."""
UNKNOWN = 128
"""Prompt tokens of a step while no times are known."""


class PrefillBudget:
    """Chooses the sizes of prompt chunks by the times of `clock`.

    `target` is the time limit of a step with generating sequences, in seconds; 0 for no limit. A
    step has at most `n_batch` prompt tokens; the limit of a step of prompts alone is at least
    `n_ubatch`. `length` is as in `StepClock`."""

    def __init__(self, clock: StepClock, target: float, *, n_batch: int, n_ubatch: int) -> None:
        self._clock = clock
        self._target = target
        self._n_batch = n_batch
        self._n_ubatch = min(n_batch, n_ubatch)
        least = min(MIN_TOKENS, n_batch)
        self._sizes = [n for n in clock.sizes if n == least or n > FEW_ROWS]

    def limit(self, n_generating: int, length: float) -> int:
        """The maximum number of prompt tokens in the next step."""
        if not n_generating:
            return self._alone(length)
        if not self._target:
            return self._n_batch
        seconds = self._seconds(n_generating, length)
        if not seconds:
            return min(self._n_batch, UNKNOWN)
        return choose(seconds, self._most(n_generating))

    def burst(self, n_generating: int, length: float) -> int:
        """The maximum for new prompts, of which no token is evaluated yet, if it covers all of them
        completely."""
        if not (n_generating and self._target):
            return self._n_batch
        seconds = self._seconds(n_generating, length)
        within = [n for n, s in seconds.items() if s <= BURST * self._target]
        return max(within, default=0)

    def compute_seconds(self, n_generating: int, n: int, start: int) -> float:
        """The estimated seconds to evaluate `n` tokens of a text from position `start` on, while
        `n_generating` sequences generate; 0 if unknown."""
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
        """The estimated seconds of a step with `n_prompt` prompt tokens alone; 0 if unknown."""
        return self._clock.seconds(0, min(n_prompt, self._n_batch), 0) or 0.0

    def left(self, n_generating: int, seconds: float) -> float:
        """The seconds between two steps for other work on the device, if a step takes `seconds`:
        the rest of the target, but at least `MIN_SHARE` of a step without prompts. Without a
        target: the time of a step without prompts. Without generating sequences: `seconds`."""
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
        """The estimated seconds of a step, by size; empty if unknown."""
        return self._clock.by_size(n_generating, self._sizes, length)

    def _most(self, n_generating: int) -> float:
        """The limit of a step in seconds: from the target, or higher if the target can't be
        kept."""
        least = (1 + MIN_SHARE) * self._clock.decode_seconds(n_generating)
        return max(AIM * self._target, least)


def choose(seconds: dict[int, float], most: float) -> int:
    """The chunk size with the best rate (tokens per second) among the sizes that take at most
    `most` seconds, or a larger size under the rule of `OVERRUN`. If every size takes longer: the
    smallest one with at least `KNEE` of the best rate of the sizes up to `LATE_TOKENS`."""
    rates = {n: n / each for n, each in seconds.items()}
    within = [n for n in seconds if seconds[n] <= most]
    if not within:
        small = [n for n in seconds if n <= LATE_TOKENS]
        enough = KNEE * max(rates[n] for n in small)
        return min(n for n in small if rates[n] >= enough)
    best = max(within, key=lambda n: (rates[n], n))
    near = [n for n, each in seconds.items() if n > best and each <= OVERRUN * most]
    far_better = [n for n in near if rates[n] >= OVERRUN * rates[best]]
    return max(far_better, key=lambda n: (rates[n], n), default=best)
