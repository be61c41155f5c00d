"""How many prompt tokens go into a step, so that those who generate don't wait for long.

A step costs about `decode(g) + prefill * p` seconds for g generating sequences and p tokens of
prompts. Both costs are measured as the server runs, and follow the machine and the length of the
texts; a step that turned out too long makes the next one shorter.
"""

MEMORY = 0.25
"""Weight of the newest measurement. Steps vary; after four of them an old figure is a third."""
MIN_TOKENS = 16
"""Of a prompt in a step, however slow the machine is: some progress is for everyone."""
LONE_SECONDS = 1.0
"""A step of prompts alone may take so long: somebody new waits for its end, and so does a
cancellation. Beyond one micro-batch, a longer step computes nothing faster."""


class PrefillBudget:
    """`target` is that of a step with somebody generating, in seconds; 0 for no limit. Limits are
    at most `n_batch`; a step of prompts alone has at least `n_ubatch`."""

    def __init__(self, target: float, *, n_batch: int, n_ubatch: int) -> None:
        self._target = target
        self._n_batch = n_batch
        self._n_ubatch = n_ubatch
        self._decode: dict[int, float] = {}  # s, by generating sequences
        self._prefill = 0.0  # s for a token; 0: not measured yet

    def limit(self, n_generating: int) -> int:
        """Prompt tokens that the next step may have at the most."""
        if not n_generating:
            return self._alone()
        if not self._target:
            return self._n_batch
        if not self._prefill:
            return min(self._n_batch, self._n_ubatch)
        left = self._target - self._decode_seconds(n_generating)
        return min(self._n_batch, max(MIN_TOKENS, int(left / self._prefill)))

    def _alone(self) -> int:
        if not self._prefill:
            return self._n_ubatch
        n_ubatches = int(LONE_SECONDS / (self._prefill * self._n_ubatch))
        return min(self._n_batch, self._n_ubatch * max(1, n_ubatches))

    def _decode_seconds(self, n_generating: int) -> float:
        """Measured, or as for the nearest number of sequences that is."""
        if not self._decode:
            return 0.0
        nearest = min(self._decode, key=lambda n: abs(n - n_generating))
        return self._decode[nearest]

    def observe(self, n_generating: int, n_prompt: int, seconds: float) -> None:
        """A step took so long."""
        if not n_prompt:
            before = self._decode.get(n_generating, seconds)
            self._decode[n_generating] = before + MEMORY * (seconds - before)
            return
        if n_prompt < MIN_TOKENS:
            return  # tells little of the cost of one
        if n_generating:
            seconds = max(seconds - self._decode_seconds(n_generating), 0.1 * seconds)
        each = seconds / n_prompt
        self._prefill = each if not self._prefill else self._mixed(each)

    def _mixed(self, each: float) -> float:
        return self._prefill + MEMORY * (each - self._prefill)
