"""Clients of many API keys, before the real admission and the real scheduler, on a simulated clock.

The clock advances by the cost of each step, which is linear in its tokens. The KV cache is the
strict fake one. Clients of a seed send the same requests, whatever happens to them.
"""

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final, NamedTuple

import numpy as np

from specllama.engine.errors import EngineError
from specllama.engine.models.generation import Meter
from specllama.engine.wire.replies import Timings
from specllama.engine.wire.requests import Terms
from specllama.engine.worker.scheduling.limits import refuse_allowance
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from specllama.engine.worker.tokens import TokenBuffer
from specllama.handlers.http.api_keys import ApiKey
from specllama.handlers.running.admission import Admission, AdmittedCall
from specllama.handlers.running.buckets import MemoryBuckets
from specllama.handlers.running.usage import UsageLog
from tests.support.fake_kv import Cell, FakeKV

HOUR: Final = 3600.0
N_SLOTS, N_CTX = 8, 512
N_PROMPT = 64
"""Prompt tokens of a step."""
STEP, TOKEN = 0.2, 0.003
"""Seconds of a step, and of each of its tokens."""
LONGEST_STEP = STEP + TOKEN * (N_PROMPT * 1.1 + N_SLOTS)
"""A step has up to a tenth more prompt tokens if that saves a further step."""
RETRY = 5.0
"""Seconds until a client tries again if a refusal says no time."""


class QuickKV(FakeKV):
    """Adds the cell of a generated token without a look at those before it. The number of all cells
    is checked in some steps only: that takes longer than the step."""

    n_checks = 0

    def evaluate(self, chunks: list[Chunk]) -> None:
        several: list[Chunk] = []
        for chunk in chunks:
            sequence = chunk.sequence
            held = self.cells.get(sequence.seq_id, [])
            if chunk.n_tokens > 1 or not held:
                several.append(chunk)
                continue
            assert len(held) == chunk.start < self.n_ctx, "positions must continue without a gap"
            assert held[-1].key == sequence.key, "cells of another key are used"
            token = int(sequence.tokens.view(chunk.start, chunk.stop)[0])
            held.append(Cell(token, sequence.key, True, {sequence.seq_id}))
        super().evaluate(several)

    def _check_cells(self) -> None:
        self.n_checks += 1
        if not self.n_checks % 256:
            super()._check_cells()


@dataclass(frozen=True, kw_only=True)
class Habit:
    """What the clients of a key send: calls with `n_texts` texts, and prompts and answers with
    these ranges of tokens. `n_open` calls at any time, or else `burst` calls at once, on average
    every `interval` seconds. The part `cancels` of the calls is cancelled after some time."""

    prompt: tuple[int, int]
    answer: tuple[int, int]
    n_texts: int = 1
    n_open: int = 0
    interval: float = 0.0
    burst: int = 1
    cancels: float = 0.0

    @property
    def most(self) -> int:
        """The most tokens of a text."""
        return self.prompt[1] + self.answer[1]


class Wait(NamedTuple):
    """The times of a text's arrival and of its first token, and its prompt tokens."""

    arrived: float
    began: float
    n_prompt: int

    @property
    def seconds(self) -> float:
        return self.began - self.arrived


@dataclass(eq=False)
class Text:
    """A text. Its first `n_evaluated` tokens were evaluated or cached; `n_used` of them were not
    cached when it got its first slot."""

    call: "Call"
    sequence: Sequence
    n_answer: int
    n_reserved: int
    n_evaluated: int = 0
    n_used: int = 0

    @property
    def n_left(self) -> int:
        """The tokens that it may use further."""
        return max(0, self.n_reserved - self.n_used)


@dataclass(eq=False)
class Call:
    client: "Client"
    arrived: float
    admitted: AdmittedCall
    leases: ExitStack
    meter: Meter | None = None
    texts: dict[int, Text] = field(default_factory=dict)
    """The texts that haven't ended, by id."""


@dataclass(eq=False)
class Client:
    """The clients of one key, and what they have seen."""

    key: ApiKey
    habit: Habit
    random: Random
    calls: set[Call] = field(default_factory=set)
    n_tokens: int = 0
    """The evaluated tokens of its texts."""
    n_of_hour: int = 0
    """The same, at the end of the hour."""
    n_used: int = 0
    """The tokens that its texts have used, each counted once."""
    n_reserved: int = 0
    """The tokens that its texts may use further."""
    n_texts: int = 0
    """The number of its texts that haven't ended."""
    n_calls: int = 0
    n_refused: int = 0
    n_starved: int = 0
    """The number of steps of the hour at whose beginning no text of it waited."""
    waits: list["Wait"] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    """The times of its admitted calls."""
    used: list[tuple[float, int, int]] = field(default_factory=list)
    """After each step and each reservation: time, `n_used`, `n_reserved`."""

    def note(self, now: float) -> None:
        if self.key.tokens_per_minute or self.key.tokens_per_day:
            self.used.append((now, self.n_used, self.n_reserved))


Event = tuple[float, int, Client, Call | None]
"""Time, number, and what happens: the client sends a call, or cancels one."""


class Crowd:
    """A server with one model, and its clients. `is_limited`: with keys, weights and quotas."""

    def __init__(self, seed: int, habits: dict[ApiKey, Habit], *, is_limited: bool = True) -> None:
        self.now = 0.0
        self.kv = QuickKV(24 * N_CTX, N_CTX)
        self.scheduler = Scheduler(
            self.kv,
            n_slots=N_SLOTS,
            n_ctx=N_CTX,
            n_cells=self.kv.n_cells,
            n_batch=N_PROMPT * 2,
            n_sequences=4 * N_SLOTS,
        )
        self.buckets = MemoryBuckets(self.clock)
        self.admission = Admission(self.buckets, UsageLog())
        self.is_limited = is_limited
        self.clients = [
            Client(key, habit, Random(f"{seed} {key.name}")) for key, habit in habits.items()
        ]
        self._open = [each for each in self.clients if each.habit.n_open]
        self.busy = self.seconds = 0.0
        """Seconds of all slots in use, and of all steps, in the hour."""
        self.n_tokens = self.n_steps = 0
        self._texts: dict[int, Text] = {}
        self._events: list[Event] = []
        self._numbers = count(1)

    @property
    def slots_in_use(self) -> float:
        """The mean part of the slots in use, in the hour."""
        return self.busy / (N_SLOTS * max(HOUR, self.seconds))

    def clock(self) -> float:
        return self.now

    async def run(self) -> None:
        """Plays an hour, and then to the end of all calls."""
        for client in self.clients:
            for _ in range(client.habit.n_open or 1):
                first = 0.0 if client.habit.n_open else client.random.expovariate(1 / HOUR) % 60
                self._plan(first, client)
        is_over = False
        while self._events or self._texts:
            while self._events and self._events[0][0] <= self.now:
                at, _, client, call = heappop(self._events)
                if call is None:
                    await self._arrive(client, at)
                else:
                    self._cancel(call)
            if self.now >= HOUR and not is_over:
                is_over = True
                self._end_hour()
            if self.admission._tasks:
                await asyncio.wait(self.admission._tasks)
            if not self._step() and self._events:
                self.now = max(self.now, self._events[0][0])

    def _end_hour(self) -> None:
        """The clients that cancel calls cancel all that are left."""
        for client in self.clients:
            client.n_of_hour = client.n_tokens
            for call in [*client.calls] if client.habit.cancels else []:
                self._cancel(call)

    # ---- clients -------------------------------------------------------------------------

    def _plan(self, at: float, client: Client, call: Call | None = None) -> None:
        if at < HOUR or call is not None:
            heappush(self._events, (at, next(self._numbers), client, call))

    async def _arrive(self, client: Client, at: float) -> None:
        habit = client.habit
        for _ in range(1 if habit.n_open else habit.burst):
            await self._send(client, at)
        if not habit.n_open:
            self._plan(at + client.random.expovariate(1 / habit.interval), client)

    async def _send(self, client: Client, at: float) -> None:
        habit, random, leases = client.habit, client.random, ExitStack()
        n_prompt, n_answer = random.randint(*habit.prompt), random.randint(*habit.answer)
        is_cancelled, after = random.random() < habit.cancels, random.uniform(0, 60)
        client.n_calls += 1
        key = client.key if self.is_limited else None
        admitted = AdmittedCall(self.admission, key, "model")
        call = Call(client, at, admitted, leases)
        try:
            await self.admission.admit(admitted, leases)
            client.requests.append(self.now)
            call.meter = admitted.meter(habit.n_texts)
            client.calls.add(call)
            self._submit(call, n_prompt, n_answer)
            await admitted.reserved()
        except EngineError as error:
            self._refused(call, error)
            return
        if is_cancelled:
            self._plan(self.now + after, client, call)

    def _submit(self, call: Call, n_prompt: int, n_answer: int) -> None:
        """Does what the engine process does with a call. Raises EngineError."""
        client, key, slots = call.client, call.client.key, self.scheduler.slots
        terms = call.admitted.limited(Terms())
        group, n_call = next(self._numbers), 0
        tokens = np.arange(group * N_CTX, group * N_CTX + n_prompt, dtype=np.int32)
        for i in range(client.habit.n_texts):
            sequence = Sequence(
                id=next(self._numbers),
                tokens=TokenBuffer(tokens),
                n_prompt=n_prompt,
                group=group,
                owner=call.admitted.owner,
                weight=key.weight if self.is_limited else 1.0,
                priority=key.priority if self.is_limited else 0,
                n_predict=n_answer,
            )
            n_uncached = 1 if i else slots.n_uncached(sequence)
            n_call += n_uncached + n_answer
            if (refusal := refuse_allowance(n_call, terms.allowance)) is not None:
                raise call.admitted.explained(EngineError(refusal))
            self.scheduler.submit(sequence, n_uncached)
            text = Text(call, sequence, n_answer, n_uncached + n_answer)
            call.texts[sequence.id] = self._texts[sequence.id] = text
            client.n_texts += 1
            client.n_reserved += text.n_reserved
            if call.meter is not None:
                call.meter.accepted(text.n_reserved)
        client.note(self.now)

    def _refused(self, call: Call, error: EngineError) -> None:
        client = call.client
        client.n_refused += 1
        for text in [*call.texts.values()]:
            self._end(text)
        self._close(call)
        if client.habit.n_open:
            self._plan(self.now + (error.info.retry_after or RETRY), client)

    def _cancel(self, call: Call) -> None:
        if call in call.client.calls:
            for text in [*call.texts.values()]:
                self._end(text)

    def _end(self, text: Text) -> None:
        """A text ends, complete or not."""
        call, sequence = text.call, text.sequence
        client = call.client
        client.n_texts -= 1
        self.scheduler.cancel(sequence)
        del call.texts[sequence.id], self._texts[sequence.id]
        client.n_reserved -= text.n_left
        client.note(self.now)
        if call.meter is not None:
            call.meter.ended(Timings(sequence.n_cached, text.n_used, 0.0, 0, 0.0))
        if not call.texts and call in client.calls:
            self._close(call)
            if client.habit.n_open:
                self._plan(self.now, client)

    def _close(self, call: Call) -> None:
        call.client.calls.discard(call)
        call.leases.close()

    # ---- steps ---------------------------------------------------------------------------

    def _step(self) -> bool:
        """Plays a step. Returns False if there is nothing to do."""
        chunks = self.scheduler.plan(N_PROMPT, now=self.now)
        if not chunks:
            return False
        self.kv.evaluate(chunks)
        n_tokens, active = sum(chunk.n_tokens for chunk in chunks), self.scheduler.active
        seconds = STEP + TOKEN * n_tokens
        if self.now < HOUR:
            self.n_steps += 1
            self.n_tokens += n_tokens
            self.seconds += seconds
            self.busy += seconds * len(active)
            running = Counter(self._texts[each.id].call.client.key.name for each in active)
            for client in self._open:
                client.n_starved += client.n_texts <= running[client.key.name]
        self.now += seconds
        self.scheduler.advance(chunks)
        for chunk in chunks:
            text = self._texts[chunk.sequence.id]
            text.call.client.n_tokens += chunk.n_tokens
            self._use(text, chunk)
            if chunk.is_last:
                self._sample(text)
        for client in {self._texts[each.id].call.client: None for each in self.scheduler.active}:
            client.note(self.now)
        return True

    def _use(self, text: Text, chunk: Chunk) -> None:
        """Counts the tokens that are evaluated for the first time."""
        n_before, client = text.n_left, text.call.client
        n = max(0, chunk.stop - max(text.n_evaluated, chunk.start))
        text.n_evaluated = max(text.n_evaluated, chunk.stop)
        text.n_used += n
        client.n_used += n
        client.n_reserved += text.n_left - n_before

    def _sample(self, text: Text) -> None:
        sequence, call = text.sequence, text.call
        if not sequence.generating:
            call.client.waits.append(Wait(call.arrived, self.now, sequence.n_prompt))
        sequence.append(7)
        if len(sequence.tokens) - sequence.n_prompt >= text.n_answer:
            self._end(text)
