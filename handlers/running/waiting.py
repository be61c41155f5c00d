"""The calls that wait, of all models of a server, and the limits of their sum.

A call waits from its admission until its model has begun its first text or input. In a server of
one model, the engine process limits the calls that it has, so a call waits here only until its
model is loaded.

Each model takes as many calls as it has slots without a wait. What waits is the rest.

The only call of an API key is never refused, so that no key can lock out the others. So at most as
many calls as there are keys are beyond a limit.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeVar

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.options.tables.context import ContextOptions

T = TypeVar("T")


class CallPlace:
    """One call: it waits, then runs, then has ended. `n_tokens` are those of its prompts, as far as
    known. It `is_only` if its `owner`, an API key, had no other call when it came."""

    def __init__(
        self, line: "WaitingCalls", model: str, owner: int, is_only: bool, n_begun: int
    ) -> None:
        self.model: Final = model
        self.owner: Final = owner
        self.is_only: Final = is_only
        self.since: Final = system.now()
        self.n_begun_before: Final = n_begun
        self.n_tokens = 0
        self._line = line

    def expect(self, n_tokens: int) -> None:
        """Sets the tokens of the call's prompts. Raises EngineError (unavailable_error) if the
        waiting calls have too many then."""
        self._line.expect(self, n_tokens)

    def leased(self) -> None:
        """The call has the engine of its model."""
        if not self._line.until_begun:
            self.begin()

    def begin(self) -> None:
        """The model has begun the call. Only the first time has an effect."""
        self._line.begin(self)


class WaitingCalls:
    """The calls of a server that wait. A limit of 0 is none.

    `n_slots` returns the number of slots of a model, 0 if it isn't loaded. With `until_begun`, a
    call waits until its model has begun it, otherwise until its model is loaded.
    """

    def __init__(
        self,
        max_calls: int = 0,
        max_tokens: int = 0,
        *,
        until_begun: bool = False,
        n_slots: Callable[[str], int] = lambda model: 0,
    ) -> None:
        self.until_begun: Final = until_begun
        self.n_refused: Counter[str] = Counter()  # by model, since the start
        self._max_calls: Final = max_calls
        self._max_tokens: Final = max_tokens
        self._n_slots = n_slots
        self._waiting: OrderedDict[CallPlace, None] = OrderedDict()  # the oldest one first
        self._running: set[CallPlace] = set()
        self._n_waiting: Counter[str] = Counter()  # by model
        self._n_running: Counter[str] = Counter()
        self._n_open: Counter[int] = Counter()  # by API key
        self._n_tokens = 0
        self._n_begun = 0

    @classmethod
    def of(
        cls, options: ContextOptions, *, router: bool, n_slots: Callable[[str], int]
    ) -> "WaitingCalls":
        """Returns the calls of a server with these options. A `router` has several models."""
        return cls(options.max_queue, options.max_queue_tokens, until_begun=router, n_slots=n_slots)

    def enter(self, model: str, leases: ExitStack, owner: int = 0) -> CallPlace:
        """Adds a call of an API key (0: of none), until the end of `leases`. Raises EngineError
        (unavailable_error) if too many wait."""
        is_only, limit = bool(owner) and not self._n_open[owner], self._max_calls
        if not is_only and limit and len(self._waiting) >= limit and self._must_wait(model):
            n = sum(self._excess(each) for each in self._n_waiting)
            if n >= limit:
                text = f"{n} requests wait for the models of this server, and --max-queue is "
                raise self._refusal(model, f"{text}{limit}", 1)
        place = CallPlace(self, model, owner, is_only, self._n_begun)
        self._n_open[owner] += 1
        self._waiting[place] = None
        self._n_waiting[model] += 1
        leases.callback(self._end, place)
        return place

    def expect(self, place: CallPlace, n_tokens: int) -> None:
        """See `CallPlace.expect`."""
        if place not in self._waiting:
            return
        n_others = self._n_tokens - place.n_tokens
        limit = self._max_tokens
        is_over = limit and n_others and n_others + n_tokens > limit
        if is_over and not place.is_only and self._excess(place.model):
            mean = n_others / max(1, len(self._waiting) - 1)
            text = (
                f"prompts with about {n_others} tokens wait for the models of this server, this "
                f"one would add {n_tokens}, and --max-queue-tokens is {limit}"
            )
            over = min(n_others, n_others + n_tokens - limit)
            raise self._refusal(place.model, text, math.ceil(over / mean))
        self._n_tokens += n_tokens - place.n_tokens
        place.n_tokens = n_tokens

    def begin(self, place: CallPlace) -> None:
        """See `CallPlace.begin`."""
        if place in self._waiting:
            self._leave(place)
            self._n_begun += 1
            self._running.add(place)
            self._n_running[place.model] += 1

    def _end(self, place: CallPlace) -> None:
        _decrease(self._n_open, place.owner)
        if place in self._waiting:
            self._leave(place)
        elif place in self._running:
            self._running.remove(place)
            _decrease(self._n_running, place.model)

    def _leave(self, place: CallPlace) -> None:
        del self._waiting[place]
        _decrease(self._n_waiting, place.model)
        self._n_tokens -= place.n_tokens

    def _free(self, model: str) -> int:
        """Returns the number of calls that a model can begin now, at most."""
        return max(0, self._n_slots(model) - self._n_running[model])

    def _excess(self, model: str) -> int:
        """Returns the number of calls that have to wait for slots of a model."""
        return max(0, self._n_waiting[model] - self._free(model))

    def _must_wait(self, model: str) -> bool:
        """True if a new call would wait for a slot of the model."""
        return self._n_waiting[model] >= self._free(model)

    def _refusal(self, model: str, message: str, n_places: int) -> EngineError:
        """Counts a refused call, and returns its error, with the time in which `n_places` calls
        will begin, as long as in the time since the oldest one began to wait."""
        self.n_refused[model] += 1
        oldest = next(iter(self._waiting))
        n_begun = max(1, self._n_begun - oldest.n_begun_before)
        wait = n_places * (system.now() - oldest.since) / n_begun
        return EngineError(
            ErrorInfo(
                "unavailable_error",
                message,
                retry_after=max(1, math.ceil(wait)),
                estimated_wait_ms=round(1e3 * wait),
            )
        )


def _decrease(counter: Counter[T], key: T) -> None:
    """Decreases a count. A count of 0 isn't kept, as models and API keys come and go."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
