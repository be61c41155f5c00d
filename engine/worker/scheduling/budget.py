"""The prefill budget: how many prompt tokens a step may have, so that generating sequences get
their next tokens in time.

Of the chunk sizes whose steps keep the target, it takes the one with the most prompt tokens per
second, as `engine.worker.scheduling.step_cost` has measured them. An untried size may be better,
and costs change, so other sizes are tried now and then: soon after a change, seldom while steps
take as long as expected, and never one that would take far longer than the target allows.
"""

from specllama.engine.worker.scheduling.step_cost import FEW_ROWS, CostVerdict, StepCost

MIN_TOKENS = 32
"""Least tokens of prompts in a step, however slow the machine is: fewer cost nearly as much."""
MIN_SHARE = 0.5
"""Prompts may add this part of the time that the step takes without them, even if the target is
missed: on a machine that can't meet it, prompts go on nevertheless."""
HARDLY = 1.15
"""A step that takes this many times as long is hardly longer: worth it if its tokens cost less."""
BURST = 3
"""Prompts that arrive together and take no more than this many targets are evaluated in one step:
cutting them would make several gaps of one, and no sequence would wait less in all."""
LONE_SECONDS = 1.0
"""Longest step of prompts alone: a new request waits for its end, and so does a cancellation.
Beyond one micro-batch, a longer step computes nothing faster."""
PACE = 2
"""Least steps with prompts between two trials of other sizes."""
RETRY = 64
"""Steps with prompts after which a size is tried again."""
PATHS = 128
"""Up to this many tokens, kernels are known to change their path: the first trial of a size may
take three times as long as a step should. Else it may take LEAP times as long, for at most twice
as many tokens."""
LEAP = 1.5
AGAIN = 1.2
"""How many times as long as it should a step may take for a size that was tried before."""
HOPE = 0.5
"""A size is not tried again if even at this part of its cost it would not be the best."""


class PrefillBudget:
    """The sizes of prompt chunks, from measured steps.

    `target` is the time of a step with generating sequences, in seconds; 0 for no limit. Limits are
    at most `n_batch`; a step of prompts alone has at least `n_ubatch`. `length` is that of
    `StepCost`."""

    def __init__(self, target: float, *, n_batch: int, n_ubatch: int) -> None:
        self.cost = StepCost(n_batch)
        self._target = target
        self._n_batch = n_batch
        self._n_ubatch = min(n_batch, n_ubatch)
        least = min(MIN_TOKENS, n_batch)
        self._sizes = [n for n in self.cost.sizes if n == least or n > FEW_ROWS]
        self._steps = 0  # with prompts beside generating sequences
        self._tried: dict[int, int] = {}  # the step that tried a size, by size
        self._last_trial = -PACE
        self._asked = self._trial = 0  # sizes; 0: the last limit was no trial

    def limit(self, n_generating: int, length: float) -> int:
        """Prompt tokens that the next step may have at most."""
        self._asked = self._trial = 0
        if not n_generating:
            return self._alone(length)
        if not self._target:
            return self._n_batch
        seconds = self._seconds(n_generating, length)
        if not seconds:
            return min(self._n_batch, PATHS)
        most = self._most(n_generating, seconds)
        self._asked = best = _best(seconds, most)
        if self._steps - self._last_trial >= PACE:
            decode = self.cost.decode_seconds(n_generating)
            self._trial = self._untried(best, seconds, decode, most)
            self._asked = self._trial or best
        return self._asked

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
            size = _best(seconds, self._most(n_generating, seconds)) if seconds else size
        size = min(n, size)
        step = self.cost.seconds(n_generating, size, length)
        if step is None:
            return 0.0
        return (step - self.cost.decode_seconds(n_generating)) * n / size

    def seconds(self, n_prompt: int) -> float:
        """The seconds of a step with nothing but so many tokens of prompts; 0 if this is not
        known."""
        return self.cost.seconds(0, min(n_prompt, self._n_batch), 0) or 0.0

    def left(self, n_generating: int, seconds: float) -> float:
        """The seconds between two steps for other work on the device, if a step takes `seconds`:
        what it leaves of the target, and some in any case. Without a target it is as long as a step
        without prompts; if nobody waits for tokens, as long as the step."""
        if not n_generating:
            return seconds
        decode = self.cost.decode_seconds(n_generating)
        if not self._target:
            return decode
        return max(MIN_SHARE * decode, self._target - seconds)

    def observe(self, n_generating: int, n_prompt: int, length: float, seconds: float) -> None:
        """A step took so long, until the device had finished it."""
        finding = self.cost.observe(n_generating, n_prompt, length, seconds)
        if not (n_prompt and n_generating):
            return
        self._steps += 1
        if finding is CostVerdict.CHANGED:
            self._tried.clear()
        size = self.cost.size_of(n_prompt)
        if size != self._asked:
            return
        if finding is not CostVerdict.USUAL:
            return  # once more, at once: it might be chance
        self._tried[size] = self._steps
        if self._trial:
            self._last_trial = self._steps

    def _alone(self, length: float) -> int:
        each = self.cost.seconds(0, self._n_ubatch, length)
        if each is None:
            return self._n_ubatch
        return min(self._n_batch, self._n_ubatch * max(1, int(LONE_SECONDS / each)))

    def _seconds(self, n_generating: int, length: float) -> dict[int, float]:
        """The seconds of a step, by size; empty if nothing is known."""
        found = {}
        for size in self._sizes:
            seconds = self.cost.seconds(n_generating, size, length)
            if seconds is None:
                return {}
            found[size] = seconds
        return found

    def _most(self, n_generating: int, seconds: dict[int, float]) -> float:
        """Seconds that a step may take: the target, if anything can keep it."""
        decode = self.cost.decode_seconds(n_generating)
        return max(self._target, (1 + MIN_SHARE) * decode, HARDLY * min(seconds.values()))

    def _untried(self, best: int, seconds: dict[int, float], decode: float, most: float) -> int:
        """A size worth a trial, the nearest; 0 if there is none."""
        each = (seconds[best] - decode) / best
        rate = best / seconds[best]
        most_tokens = max(PATHS, 2 * best)
        near = [n for n in self._sizes if n != best and best / 2.5 <= n <= most_tokens]
        for size in sorted(near, key=lambda n: max(n, best) / min(n, best)):
            if size > PATHS and not _is_coarse(size):
                continue
            tried = self._tried.get(size)
            is_new = tried is None or not self.cost.is_measured(size)
            bound = (3 if is_new and size <= PATHS else LEAP) * most
            if tried is None:
                if decode + size * each <= bound:
                    return size
            elif (
                self._steps - tried >= RETRY
                and seconds[size] <= AGAIN * most
                and size > HOPE * seconds[size] * rate
            ):
                return size
        return 0


def _is_coarse(size: int) -> bool:
    """True if it is a power of two or the middle between two: others are too near to them."""
    odd = size // (size & -size)
    return odd in (1, 3)


def _best(seconds: dict[int, float], most: float) -> int:
    """The size with the most tokens per second of those that take at most `most` seconds, or one
    that takes hardly longer and gets on faster. There is one that keeps it."""
    best = max((n for n in seconds if seconds[n] <= most), key=lambda n: (n / seconds[n], n))
    near = [n for n in seconds if n >= best and seconds[n] <= HARDLY * seconds[best]]
    return max(near, key=lambda n: (n / seconds[n], n))
