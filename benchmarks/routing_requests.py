"""The requests of `benchmarks.routing`: generated conversations, or a recorded trace.

A text is the list of the hashes of its blocks. A conversation has one growing text, so all its
requests share one list, and each has the numbers of blocks that it uses.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Request:
    """A prompt of `n_tokens` tokens that arrives at `at` (seconds) and gets an answer of `n_answer`
    tokens. The blocks of the prompt are the first `n_blocks` of `text`; `n_after` are those of the
    prompt and its answer."""

    at: float
    n_tokens: int
    n_answer: int
    text: Sequence[int] = field(repr=False)
    n_blocks: int
    n_after: int
    conversation: int

    @property
    def blocks(self) -> Sequence[int]:
        return self.text[: self.n_blocks]


@dataclass(frozen=True)
class Habits:
    """The properties of generated conversations. Lengths are means, in tokens; times in seconds."""

    n_tenants: int
    """Groups of conversations with the same system prompt."""
    zipf: float = 1.0
    """The tenant number n has a share proportional to n ** -zipf of the conversations."""
    system: tuple[int, int] = (200, 3000)
    """The shortest and longest system prompt; their logarithms are evenly distributed."""
    message: int = 120
    answer: int = 150
    turns: float = 5.0
    pause: float = 10.0
    """From a request of a conversation to the next one."""
    bursts: float = 0.1
    """The share of the conversations that are bursts instead: `questions` requests about one new
    document of `document` tokens, all within `burst_seconds`."""
    document: int = 4000
    questions: int = 8
    burst_seconds: float = 0.5


def mixed(a: int, b: int) -> int:
    """A hash of two numbers, with 64 bits (the finalizer of SplitMix64)."""
    x = (a * 0x9E3779B97F4A7C15 + b + 1) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Conversations:
    """Generates conversations; the same seed generates the same ones."""

    def __init__(self, habits: Habits, block: int, seed: int) -> None:
        self._habits, self._block = habits, block
        self._random = Random(seed)
        low, high = habits.system
        self._systems = [
            round(low * (high / low) ** self._random.random()) for _ in range(habits.n_tenants)
        ]
        self._weights = [(n + 1) ** -habits.zipf for n in range(habits.n_tenants)]
        self._n = 0

    def requests(self, per_second: float, seconds: float) -> list[Request]:
        """Returns the requests of the first `seconds`. Conversations begin at random times
        (Poisson), `per_second` on average."""
        at = 0.0
        found: list[Request] = []
        while (at := at + self._random.expovariate(per_second)) < seconds:
            found += self.conversation(at)
        return sorted((each for each in found if each.at < seconds), key=lambda each: each.at)

    def conversation(self, at: float) -> list[Request]:
        """Returns the requests of one conversation, or of one burst, which begins at `at`."""
        random = self._random
        self._n += 1
        [tenant] = random.choices(range(len(self._systems)), self._weights)
        is_burst = random.random() < self._habits.bursts
        return list((self._burst if is_burst else self._turns)(at, tenant))

    def _turns(self, at: float, tenant: int) -> Iterator[Request]:
        habits, random = self._habits, self._random
        text = _Text(self._block)
        n = text.extend(mixed(1, tenant), self._systems[tenant])
        own = mixed(2, self._n)
        while True:
            n = text.extend(own, self._length(habits.message))
            n_answer = self._length(habits.answer)
            n_after = text.extend(own, n_answer)
            yield text.request(at, n, n_answer, self._n)
            n = n_after
            if random.random() < 1 / habits.turns:
                return
            at += random.expovariate(1 / habits.pause)

    def _burst(self, at: float, tenant: int) -> Iterator[Request]:
        habits, random = self._habits, self._random
        n_document = self._length(habits.document)
        times = sorted(at + habits.burst_seconds * random.random() for _ in range(habits.questions))
        for question, time in enumerate(times):
            text = _Text(self._block)
            text.extend(mixed(1, tenant), self._systems[tenant])
            text.extend(mixed(2, self._n), n_document)
            own = mixed(mixed(3, self._n), question)
            n = text.extend(own, self._length(habits.message))
            n_answer = self._length(habits.answer)
            text.extend(own, n_answer)
            yield text.request(time, n, n_answer, self._n)

    def _length(self, mean: float) -> int:
        return 1 + int(self._random.expovariate(1 / mean))


class _Text:
    """A growing text, and the hashes of its whole blocks."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._n = 0
        self._hashes: list[int] = []

    def extend(self, content: int, n: int) -> int:
        """Appends `n` tokens, which `content` stands for. Returns the length of the text."""
        self._n += n
        self._hashes += [
            mixed(content, i) for i in range(len(self._hashes), self._n // self._block)
        ]
        return self._n

    def request(self, at: float, n: int, n_answer: int, conversation: int) -> Request:
        """Returns a request whose prompt are the first `n` tokens."""
        n_blocks, n_after = n // self._block, (n + n_answer) // self._block
        return Request(at, n, n_answer, self._hashes, n_blocks, n_after, conversation)


def read_trace(path: Path) -> list[Request]:
    """Reads recorded requests. Each line is a JSON object:

    at: arrival, in seconds
    n_tokens: tokens of the prompt
    n_answer: tokens of the answer
    blocks: a number for each block of the prompt, from its beginning; equal blocks with equal
        blocks before them have equal numbers
    conversation: a number, the same for the requests of a conversation; optional

    A last block that isn't complete may be there or not.
    """
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            each = json.loads(line)
            hashes: list[int] = []
            for block in each["blocks"]:
                hashes.append(mixed(hashes[-1] if hashes else 0, block))
            n = len(hashes)
            conversation = each.get("conversation", -1 - number)
            found.append(
                Request(each["at"], each["n_tokens"], each["n_answer"], hashes, n, n, conversation)
            )
    return sorted(found, key=lambda request: request.at)
