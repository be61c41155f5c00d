"""Chooses the member of a fleet (a replica of a model) that answers a request.

This module has plain data and no clock: the caller reports events and passes the time, in seconds.
The rules:

- The cost of a member is a time: the wait until it can begin the request, plus `WORK_WEIGHT` times
  its work for the request, plus the time of `ANSWER_STEPS` steps. The work is that of the prompt
  tokens which it doesn't hold in its KV cache, and of encoding their media; the last token of a
  prompt is always computed. All times are the member's own measured ones.
- The member with the least cost is chosen. Measured times are imprecise, so costs that differ by
  less than `SIMILAR` are equal: then a member with the fewest texts for each slot is chosen, at
  random if there are several.
- Members report their loads and the changes of their caches, about each second. Between two reports
  each request counts at its member: its work adds to the wait, as does its answer if all slots are
  in use, and its blocks are expected there. So requests with a common prefix that arrive together
  go to the same member, until the wait there costs more than a second computation of the prefix.
- Expectations end `CONFIRM_SECONDS` after the prompt was evaluated. By then the member has reported
  the blocks, or it doesn't have them.
- A member is silent if its last report is older than `SILENT_SECONDS`. Its cache counts as empty.
  Its clock stops, so its wait only grows with each request that it gets: a replica that hangs gets
  no more than its share of the next requests.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import numpy as np
import numpy.typing as npt

from specllama.engine.fleet.holders import Holders, Holding, rows
from specllama.engine.wire.replies import PromptMedium
from specllama.engine.wire.stats import ReplicaLoad

WORK_WEIGHT = 3.0
"""The weight of a request's own work in the cost of a member. A second of work delays the request
by a second, and also the texts beside it and after it. `docs/reports/routing.md` compares
weights."""
ANSWER_STEPS = 32
"""The steps of an answer that count in the cost: an answer is slower beside many texts."""
SIMILAR = 1.1
"""The factor by which costs have to differ."""
SILENT_SECONDS = 5.0
"""The age of a report from which its member is silent: several reports are missing."""
CONFIRM_SECONDS = 3.0
"""The time for a member to report the blocks of an evaluated prompt: one interval of reports, and a
second one if a report is late."""
SETTLE_SECONDS = 0.1
"""A report that arrives sooner after a request was sent may have been made without it, so the
request is added to the reported load: several times the way through a network."""
GUESSED_TOKEN = 1e-3
"""The seconds of a prompt token, until a member of the fleet has measured them."""
GUESSED_ANSWER = 1.0
"""The seconds of an answer, from its first token to its end, until answers have ended."""
ANSWER_SHARE = 1 / 64
"""The part that the newest answer has in the mean time of an answer."""
MOST_BLOCKS = 16_384
"""The number of blocks that count for one member. It limits the memory of the index: a block that
one member holds takes about 140 bytes."""

Reason = Literal[
    "prefix",  # no member holds more of the prompt
    "load",  # a member holds more of it, but costs more, or was excluded
    "new",  # no member holds any of it
]
"""Why a member was chosen."""


@dataclass(frozen=True)
class WantedPrompt:
    """A prompt that needs a replica. `blocks` are the hashes of its blocks, from the beginning.
    Encoding a medium counts as much work as evaluating its tokens."""

    n_tokens: int
    blocks: Sequence[int] = ()
    media: Sequence[PromptMedium] = ()


@dataclass(eq=False)
class PlacedRequest:
    """The choice for a request. `n_blocks` blocks of its prompt are in the member's cache, or will
    be; the member has the work of `n_tokens` tokens."""

    member: Hashable
    reason: Reason
    n_blocks: int
    n_tokens: int
    since: float
    _at: "_Member"
    _expected: list[int]
    _began: float | None = None
    _has_ended: bool = False


@dataclass(eq=False)
class _Member:
    name: Hashable
    row: int
    holding: Holding
    fading: deque[tuple[float, list[int]]] = field(default_factory=deque)
    """Expectations of evaluated prompts, and the times at which they end."""
    _newest: deque[PlacedRequest] = field(default_factory=deque)

    def add(self, placed: PlacedRequest) -> None:
        self._drop_old(placed.since)
        self._newest.append(placed)

    def recent(self, now: float) -> list[PlacedRequest]:
        """The open requests that a report which arrives now may not include."""
        self._drop_old(now)
        return [each for each in self._newest if not each._has_ended]

    def _drop_old(self, now: float) -> None:
        while self._newest and now - self._newest[0].since >= SETTLE_SECONDS:
            self._newest.popleft()


class Placing:
    """The members of a fleet, with their caches and loads. A block has `block` tokens."""

    def __init__(
        self,
        random: Random,
        block: int,
        *,
        n_most: int = MOST_BLOCKS,
        silent_seconds: float = SILENT_SECONDS,
        work_weight: float = WORK_WEIGHT,
    ) -> None:
        self._random = random
        self._block = block
        self._silent = silent_seconds
        self._work_weight = work_weight
        self._holders = Holders(n_most)
        self._members: dict[Hashable, _Member] = {}
        self._rows: list[_Member | None] = []
        self._answer_seconds = GUESSED_ANSWER
        self._free: list[int] = []  # rows without a member, whose wait is infinite
        # For each row:
        self._ready = np.empty(0)  # the time at which the member can begin one more request
        self._pace = np.empty(0)  # seconds of a prompt token
        self._step = np.empty(0)  # seconds of a step with one more text
        self._is_measured = np.empty(0, np.bool_)  # both, as opposed to the mean of other members
        self._seen = np.empty(0)  # the time of the last report
        self._texts = np.empty(0)  # running and waiting ones
        self._slots = np.empty(0)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def names(self) -> set[Hashable]:
        return {*self._members}

    def age(self, name: Hashable, now: float) -> float:
        """Returns the seconds since the last report of a member; 0 if it has left."""
        member = self._members.get(name)
        return 0.0 if member is None else float(now - self._seen[member.row])

    # ---- events ---------------------------------------------------------------------

    def join(self, name: Hashable, load: ReplicaLoad, now: float) -> None:
        """Adds a member, whose cache is empty. It replaces an earlier member of the same name."""
        self.leave(name)
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._rows[row] = self._members[name] = member = _Member(name, row, Holding(row))
        self._load(member, load, now)

    def leave(self, name: Hashable) -> None:
        """Removes a member, if there is one of this name."""
        if member := self._members.pop(name, None):
            self._holders.clear(member.holding)
            self._rows[member.row] = None
            self._ready[member.row] = np.inf
            self._is_measured[member.row] = False
            self._free.append(member.row)

    def report(
        self,
        name: Hashable,
        load: ReplicaLoad,
        added: Iterable[int],
        removed: Iterable[int],
        now: float,
    ) -> None:
        """Records a member's load, and its changes since its last report: the blocks that are no
        longer in its cache (`removed`), then new ones (`added`). Does nothing if the member has
        left."""
        if member := self._members.get(name):
            self._holders.report(member.holding, added, removed)
            self._fade(member, now)
            self._load(member, load, now)

    def began(self, placed: PlacedRequest, now: float) -> None:
        """Records that the prompt of a request has been evaluated."""
        if placed._began is None:
            placed._began = now
            placed._at.fading.append((now + CONFIRM_SECONDS, placed._expected))
            self._fade(placed._at, now)

    def ended(self, placed: PlacedRequest, now: float) -> None:
        """Records the end of a request, however it ended."""
        if placed._has_ended:
            return
        placed._has_ended = True
        if placed._began is not None:
            self._answer_seconds += ANSWER_SHARE * (now - placed._began - self._answer_seconds)
        self.began(placed, now)
        member = placed._at
        if self._is_here(member):
            self._texts[member.row] = max(0, self._texts[member.row] - 1)

    # ---- the choice -----------------------------------------------------------------

    def place(
        self, wanted: WantedPrompt, now: float, without: Collection[Hashable] = ()
    ) -> PlacedRequest | None:
        """Chooses a member for a request, and counts the request there: the caller has to report
        its end. Members in `without` are not chosen. Returns None if there is no other one."""
        is_silent = now - self._seen > self._silent
        held = np.where(is_silent, 0, self._held(wanted.blocks))
        work = wanted.n_tokens - np.minimum(held * self._block, wanted.n_tokens - 1)
        for medium in wanted.media:
            is_encoded = rows(self._holders.of(medium.hash), len(work)) & ~is_silent
            work[~is_encoded & (held * self._block < medium.stop)] += medium.n_tokens
        clock = np.minimum(now, self._seen + self._silent)
        costs = np.maximum(self._ready - clock, 0) + self._work_weight * work * self._pace
        costs += ANSWER_STEPS * self._step
        for name in without:
            if other := self._members.get(name):
                costs[other.row] = np.inf
        row = self._least(costs)
        member = None if row is None else self._rows[row]
        if member is None:
            return None
        n_blocks, longest = int(held[row]), int(held.max())
        reason: Reason = "load" if n_blocks < longest else "prefix" if n_blocks else "new"
        media = [each.hash for each in wanted.media]
        expected = self._holders.expect(member.holding, [*media, *wanted.blocks])
        placed = PlacedRequest(member.name, reason, n_blocks, int(work[row]), now, member, expected)
        self._ready[row] = max(self._ready[row], clock[row]) + work[row] * self._pace[row]
        self._texts[row] += 1
        if self._texts[row] >= self._slots[row]:  # one more request waits for the end of an answer
            self._ready[row] += self._answer_seconds / self._slots[row]
        member.add(placed)
        return placed

    def _held(self, blocks: Sequence[int]) -> npt.NDArray[np.int64]:
        """The number of blocks that each member holds from the beginning of a prompt."""
        held = np.zeros(len(self._rows), np.int64)
        for n, members in self._holders.prefixes(blocks):
            held[rows(members, len(held))] = n
        return held

    def _least(self, costs: npt.NDArray[np.float64]) -> int | None:
        """The row with the least cost: of similar ones, one with few texts for each slot."""
        least = costs.min(initial=np.inf)
        if least == np.inf:
            return None
        similar = np.flatnonzero(costs <= SIMILAR * least)
        crowds = self._texts[similar] / self._slots[similar]
        return int(self._random.choice(similar[crowds == crowds.min()]))

    # ---- rows -----------------------------------------------------------------------

    def _is_here(self, member: _Member) -> bool:
        return self._rows[member.row] is member

    def _fade(self, member: _Member, now: float) -> None:
        """Ends old expectations of a member's blocks."""
        while member.fading and member.fading[0][0] <= now:
            _, expected = member.fading.popleft()
            if self._is_here(member):
                self._holders.forget(member.holding, expected)

    def _load(self, member: _Member, load: ReplicaLoad, now: float) -> None:
        """Records a reported load, and adds the requests that it may not include."""
        row, recent = member.row, member.recent(now)
        self._is_measured[row] = load.prompt_seconds > 0 and load.step_seconds > 0
        pace = load.prompt_seconds or self._usual(self._pace, GUESSED_TOKEN)
        self._pace[row] = pace
        self._step[row] = load.step_seconds or self._usual(self._step, 0.0)
        # The estimated wait for a slot includes the prompts before it; it is 0 if a slot is free.
        wait = max(load.n_tokens_waiting * pace, load.wait_seconds)
        self._ready[row] = now + wait + sum(each.n_tokens for each in recent) * pace
        self._texts[row] = load.n_busy + load.n_waiting + len(recent)
        self._slots[row] = max(1, load.n_slots)
        self._seen[row] = now

    def _usual(self, times: npt.NDArray[np.float64], guess: float) -> float:
        """The time of a member that hasn't measured it: the mean of the others."""
        measured = times[self._is_measured]
        return float(measured.mean()) if measured.size else guess

    def _grow(self) -> None:
        """Doubles the number of rows."""
        n = len(self._rows)
        more = max(8, n)
        self._rows += [None] * more
        self._free += reversed(range(n, n + more))
        self._ready = np.append(self._ready, np.full(more, np.inf))
        self._is_measured = np.append(self._is_measured, np.zeros(more, np.bool_))
        self._pace, self._step, self._seen, self._texts, self._slots = (
            np.append(each, np.ones(more))
            for each in (self._pace, self._step, self._seen, self._texts, self._slots)
        )
