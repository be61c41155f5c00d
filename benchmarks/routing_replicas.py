"""A simulated replica for `benchmarks.routing`: slots, a prefix cache, and the time of its work.

A replica evaluates one prompt after the other. Its steps have a fixed time while a prompt is
evaluated: the running texts get a token each, and the rest of the step is for the prompt
(`--target-itl-ms` of specllama). Between two events, the speeds of all texts are constant, so the
simulation goes from event to event and not from step to step.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from benchmarks.routing_requests import Request
from specllama.engine.wire.stats import ReplicaLoad

FIRST_ANSWER = 128.0
ANSWER_SHARE = 1 / 16
"""The expected length of an answer at first, and the part that the newest one has in it; the same
as in `engine.worker.scheduling.admission`."""


@dataclass(frozen=True)
class Speed:
    """The times and sizes of a replica. Times are in seconds.

    The defaults are measured values of a model with 8 billion parameters on an H200
    (`docs/reports/gpu.md`): 4,096 prompt tokens took 0.46 s; steps took 4.09 ms with 1 text and
    17.4 ms with 32. The cache has the size of that run.
    """

    prompt: float = 0.112e-3
    """One prompt token alone."""
    step: float = 3.66e-3
    """A step without texts, extrapolated."""
    text: float = 0.43e-3
    """One more text in a step."""
    target: float = 0.1
    """A step with a part of a prompt, beside other texts."""
    n_slots: int = 16
    n_cached: int = 131_072
    """Tokens in the cache."""
    block: int = 64
    """Tokens in a block."""

    def of_step(self, n: int) -> float:
        return self.step + n * self.text

    def alone(self, request: Request) -> float:
        """The work of a request without caches, in a replica with texts in all slots."""
        of_token = self.of_step(self.n_slots) / self.n_slots
        return request.n_tokens * self.prompt + request.n_answer * of_token


class Cache:
    """The blocks of the texts in a replica's memory. The least recently used ones are evicted, the
    ends of texts before their beginnings."""

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._blocks: dict[int, None] = {}  # the least recently used first
        self._added: set[int] = set()
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    def n_held(self, blocks: Iterable[int]) -> int:
        """The number of blocks from the beginning that are in the cache."""
        n = 0
        for block in blocks:
            if block not in self._blocks:
                break
            n += 1
        return n

    def put(self, blocks: Iterable[int]) -> None:
        """Makes the blocks of a text the most recently used ones."""
        for block in reversed([*blocks]):
            if block in self._blocks:
                del self._blocks[block]
            elif block in self._removed:
                self._removed.remove(block)
            else:
                self._added.add(block)
            self._blocks[block] = None
        while len(self._blocks) > self._n_most:
            oldest = next(iter(self._blocks))
            del self._blocks[oldest]
            if oldest in self._added:
                self._added.remove(oldest)
            else:
                self._removed.add(oldest)

    def changes(self) -> tuple[set[int], set[int]]:
        """Returns the blocks that were added and removed since the last call."""
        changes = self._added, self._removed
        self._added, self._removed = set(), set()
        return changes


@dataclass(eq=False)
class Running:
    """A request at the replica with this number, and the times of its events."""

    request: Request
    replica: int
    n_cached: int = 0
    """Tokens of the prompt."""
    began: float = 0.0
    """The time of the first token."""
    ended: float = 0.0


class Replica:
    """The replica with this number. The caller advances it to each `next_event`, and to the time of
    each request and report."""

    def __init__(self, number: int, speed: Speed) -> None:
        self.number = number
        self.busy = 0.0
        """Seconds with work."""
        self.cache = Cache(speed.n_cached // speed.block)
        self._speed = speed
        self._now = 0.0
        self._prompts: deque[Running] = deque()  # with a slot; the first one is being evaluated
        self._n_left = 0.0  # uncached tokens of the first prompt
        self._waiting: deque[Running] = deque()
        self._answers: list[tuple[float, int, Running]] = []  # by the level at which they end
        self._level = 0.0  # tokens of a text that has always been running
        self._n_started = 0
        self._mean_answer = FIRST_ANSWER

    @property
    def n_busy(self) -> int:
        return len(self._prompts) + len(self._answers)

    def start(self, request: Request, now: float) -> Running:
        """Adds a request."""
        self.advance(now)
        running = Running(request, self.number)
        if self.n_busy < self._speed.n_slots:
            self._admit(running)
        else:
            self._waiting.append(running)
        return running

    def next_event(self) -> float:
        """The time at which the next prompt or answer is complete; infinite without work."""
        of_prompt, of_token = self._times()
        found = float("inf")
        if self._prompts:
            found = self._now + self._n_left * of_prompt
        if self._answers:
            found = min(found, self._now + (self._answers[0][0] - self._level) * of_token)
        return max(found, self._now)

    def finish(self, now: float) -> tuple[Running | None, Running | None]:
        """Advances to the next event, at `now`. Returns the request whose prompt is complete, or
        the one whose answer is."""
        of_prompt, of_token = self._times()
        is_prompt = bool(self._prompts) and (
            not self._answers
            or self._n_left * of_prompt <= (self._answers[0][0] - self._level) * of_token
        )
        self.advance(now)
        if is_prompt:
            running = self._prompts.popleft()
            running.began = now
            self.cache.put(running.request.blocks)
            self._n_started += 1
            heappush(
                self._answers, (self._level + running.request.n_answer, self._n_started, running)
            )
            self._begin_prompt()
            return running, None
        self._level, _, running = heappop(self._answers)
        running.ended = now
        request = running.request
        self.cache.put(request.text[: request.n_after])
        self._mean_answer += ANSWER_SHARE * (request.n_answer - self._mean_answer)
        if self._waiting:
            self._admit(self._waiting.popleft())
        return None, running

    def advance(self, now: float) -> None:
        """Does the work until `now`, which isn't after the next event."""
        of_prompt, of_token = self._times()
        seconds, self._now = now - self._now, now
        if self._prompts:
            self._n_left = max(0.0, self._n_left - seconds / of_prompt)
        if self._answers:
            self._level = min(self._answers[0][0], self._level + seconds / of_token)
        if self.n_busy:
            self.busy += seconds

    def load(self, now: float) -> ReplicaLoad:
        """Returns the load in a report at `now`."""
        self.advance(now)
        speed = self._speed
        of_prompt, _ = self._times()
        n_tokens = self._n_waiting_tokens()
        wait = 0.0
        if self.n_busy >= speed.n_slots:
            n_steps = (len(self._waiting) + 1) * self._mean_answer / speed.n_slots
            wait = n_steps * speed.of_step(speed.n_slots) + n_tokens * of_prompt
        return ReplicaLoad(
            n_slots=speed.n_slots,
            n_busy=self.n_busy,
            n_waiting=len(self._waiting),
            n_tokens_waiting=n_tokens,
            prompt_seconds=of_prompt,
            step_seconds=speed.of_step(len(self._answers) + 1),
            wait_seconds=wait,
        )

    def _times(self) -> tuple[float, float]:
        """The seconds of a prompt token, and of a token of each answer."""
        speed, n = self._speed, len(self._answers)
        step = speed.of_step(n)
        if not n:
            return speed.prompt, step
        whole = max(speed.target, 2 * step)
        return speed.prompt * whole / (whole - step), whole if self._prompts else step

    def _n_uncached(self, request: Request) -> int:
        return self._n_computed(request, self.cache.n_held(request.blocks))

    def _n_computed(self, request: Request, n_cached: int) -> int:
        """The tokens to compute if `n_cached` blocks are there; the last one always is."""
        return request.n_tokens - min(n_cached * self._speed.block, request.n_tokens - 1)

    def _n_waiting_tokens(self) -> int:
        """The uncached tokens of all prompts; common beginnings of them count once."""
        n, before = int(self._n_left), set[int]()
        for i, running in enumerate([*self._prompts, *self._waiting]):
            blocks = running.request.blocks
            n_cached = self.cache.n_held(blocks)
            while n_cached < len(blocks) and blocks[n_cached] in before:
                n_cached += 1
            before.update(blocks[n_cached:])
            if i:  # the rest of the first one is known
                n += self._n_computed(running.request, n_cached)
        return n

    def _admit(self, running: Running) -> None:
        self._prompts.append(running)
        if len(self._prompts) == 1:
            self._begin_prompt()

    def _begin_prompt(self) -> None:
        """Looks in the cache for the next prompt; earlier prompts may have the same beginning."""
        if self._prompts:
            running = self._prompts[0]
            n = self._n_uncached(running.request)
            running.n_cached = running.request.n_tokens - n
            self._n_left = float(n)
        else:
            self._n_left = 0.0
