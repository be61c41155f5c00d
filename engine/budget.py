"""How many prompt tokens go into a step, so that those who generate don't wait for long.

A step costs about `decode(g) + fixed + each * p` seconds for g generating sequences and p tokens
of prompts. All three are measured as the server runs, and follow the machine and the length of
the texts: a weighted least-squares fit, in which old measurements fade.
"""

MEMORY = 0.25
"""Weight of the newest step in the average of steps without prompts: after four of them an old
figure counts for a third."""
FADING = 0.9
"""What is left of the weight of a step with prompts after the next one."""
MIN_TOKENS = 32
"""Of prompts in a step, however slow the machine is: fewer cost nearly as much."""
MIN_SHARE = 0.5
"""Prompts may take so much of the time that the step takes without them, even if the target is
missed: on a machine that can't meet it they go on nevertheless."""
BURST = 3
"""Prompts that come together and take no more than so many targets are evaluated at once: cutting
them would make several gaps of one, and nobody would wait for less time in all."""
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
        self._line = _Line()

    def limit(self, n_generating: int) -> int:
        """Prompt tokens that the next step may have at the most."""
        if not n_generating:
            return self._alone()
        if not self._target:
            return self._n_batch
        if not self.token_seconds:
            return min(self._n_batch, self._n_ubatch)
        decode = self._decode_seconds(n_generating)
        seconds = max(self._target - decode - self._line.at_zero, MIN_SHARE * decode)
        return min(self._n_batch, max(MIN_TOKENS, int(seconds / self.token_seconds)))

    def burst(self, n_generating: int) -> int:
        """The same for prompts of which nothing has been evaluated yet, if it is enough for the
        whole of all of them."""
        limit = self.limit(n_generating)
        if not (n_generating and self._target and self.token_seconds):
            return limit
        return min(self._n_batch, max(limit, int(BURST * self._target / self.token_seconds)))

    def _alone(self) -> int:
        if not self.token_seconds:
            return min(self._n_batch, self._n_ubatch)
        n_ubatches = int(LONE_SECONDS / (self.token_seconds * self._n_ubatch))
        return min(self._n_batch, self._n_ubatch * max(1, n_ubatches))

    def _decode_seconds(self, n_generating: int) -> float:
        """Measured, or as for the nearest number of sequences that is."""
        if not self._decode:
            return 0.0
        nearest = min(self._decode, key=lambda n: abs(n - n_generating))
        return self._decode[nearest]

    @property
    def token_seconds(self) -> float:
        """What a prompt token takes; 0 until this is known."""
        return self._line.slope

    def observe(self, n_generating: int, n_prompt: int, seconds: float) -> None:
        """A step took so long."""
        if n_prompt:
            decode = self._decode_seconds(n_generating) if n_generating else 0.0
            self._line.add(n_prompt, max(0.0, seconds - decode))
        else:
            before = self._decode.get(n_generating, seconds)
            self._decode[n_generating] = before + MEMORY * (seconds - before)


class _Line:
    """A line through points whose weights fade: its value at 0 and its slope, neither below 0;
    slope 0 without points."""

    def __init__(self) -> None:
        self.at_zero = self.slope = 0.0
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        self._n = FADING * self._n + 1
        self._x = FADING * self._x + x
        self._y = FADING * self._y + y
        self._xx = FADING * self._xx + x * x
        self._xy = FADING * self._xy + x * y
        self.at_zero, self.slope = self._fit()

    def _fit(self) -> tuple[float, float]:
        through_origin = self._xy / self._xx
        spread = self._n * self._xx - self._x * self._x
        if spread < 1e-3 * self._n * self._xx:  # the points lie at one place
            return 0.0, through_origin
        slope = (self._n * self._xy - self._x * self._y) / spread
        at_zero = (self._y - slope * self._x) / self._n
        if slope <= 0 or at_zero < 0:
            return 0.0, through_origin
        return at_zero, slope
