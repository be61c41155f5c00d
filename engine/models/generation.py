"""The server's side of one generating request: its events, in order."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo, invalid_request
from specllama.engine.wire.replies import (
    Accepted,
    Begun,
    Delta,
    Event,
    Failed,
    Finished,
    Queued,
    Relaxed,
    Timings,
)
from specllama.engine.wire.requests import Submit, Terms

AHEAD = 256
"""Number of unread events after which the generation is paused, so that others get its slot."""
HEAVY = 16_384
"""The same bound for the weight of the unread events; `MAX_WAITING` defines the weight."""
PAUSE_GRACE = 0.1  # s for the reader to catch up before the pause
CAUGHT_UP = 0.5  # share of these bounds at which a paused generation continues
MAX_WAITING = 100_000
"""Weight of unread events after which the generation is cancelled. An event weighs 1, and 1 more
for each probability."""
GRACE = 1.0  # s for the reader to catch up before that: the whole process may have been blocked
_BEGUN = (Begun, Delta)
_LAST = (Finished, Failed)
_NOT_READ = "the client doesn't read this stream as fast as it is generated"


class GenerationClient(Protocol):
    """Receives the control calls of a generation."""

    def forget(self, id: int) -> None: ...
    def pause(self, id: int) -> None: ...
    def resume(self, id: int) -> None: ...

    def end_thoughts(self, id: int) -> None: ...


class Meter(Protocol):
    """Receives what a call uses. A call without a meter isn't metered."""

    def accepted(self, n_tokens: int) -> None:
        """The engine has accepted a text (or a slice of the inputs of an embedding request), which
        may use `n_tokens`. At most once for each."""

    def ended(self, timings: Timings | None) -> None:
        """A text has ended, and has used the tokens of `timings`; None if that is unknown, as the
        process ended. Exactly once for each text, however it ends, also without `accepted`. For an
        embedding request, exactly once for all inputs."""


class Generation:
    """The events of one submitted request: `Begun`, for which `begun` waits, `Delta`s (if the
    request streams), then one `Finished`. The generation is paused while it is far ahead of its
    reader.

    Iteration raises `EngineError` if the request fails. A reader that stops early has to call
    `cancel`. From the first event on, `relaxed` contains the keywords of its schemas that aren't
    enforced. While it waits for a slot, `queue` has its place, with `Terms.shows_queue`.
    """

    def __init__(
        self,
        request: Submit,
        client: "GenerationClient",
        meter: Meter | None = None,
        on_begun: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self.client = client
        self.has_begun = False  # it has a slot in the engine
        self.last: Finished | Failed | None = None  # the last event, even if it isn't read yet
        self.ended = 0.0  # when the last event arrived, by `engine.system.now`
        self.has_moved = False  # handed from an ended process to the next one
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._n_waiting = 0  # weight of the unread events, see MAX_WAITING
        self._late: asyncio.TimerHandle | None = None
        self._ahead: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._on_begun = on_begun
        self._meter = meter  # until it has received the end
        self._sent = system.now()
        self._timings: Timings | None = None  # the last known ones of a metered request
        self.relaxed: list[str] = []
        self.queue: Queued | None = None

    @property
    def may_move(self) -> bool:
        """True if another process can take it over: it has not begun, and was not moved before."""
        return not (self.has_begun or self.has_moved)

    @property
    def ready(self) -> bool:
        """True if iteration doesn't block: there is an event, or the generation is over."""
        return self._over or bool(self._events)

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Delta | Finished:
        while not self._over:
            if not self._events:
                await self._coming()
                continue
            event = self._take()
            if isinstance(event, Delta):
                return event
            if isinstance(event, Finished):
                self._over = True
                return event
            if isinstance(event, Accepted):
                raise RuntimeError("the engine confirmed a request that wasn't to be confirmed")
        raise StopAsyncIteration

    async def accepted(self) -> None:
        """Waits until the engine accepts a request sent with `confirm`. Raises `EngineError` if it
        is rejected."""
        await self._next()

    async def begun(self) -> Begun:
        """Waits until the request has a slot. Must be called before its other events are read."""
        event = await self._next()
        if isinstance(event, Begun):
            return event
        raise RuntimeError("this generation has begun before")

    async def _next(self) -> Event:
        while True:
            while not self._events:
                await self._coming()
            event = self._take()
            if not isinstance(event, Relaxed):
                return event

    def _coming(self) -> "asyncio.Future[None]":
        """Returns a future that is done when there is another event."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _take(self) -> Event:
        """Returns the oldest unread event. Raises `EngineError` if it is a failure."""
        event = self._events.popleft()
        self._n_waiting -= _weight(event)
        if self._is_paused and not self._is_ahead(CAUGHT_UP):
            self._is_paused = False
            self.client.resume(self.request.id)
        if isinstance(event, Relaxed):
            self.relaxed = event.keywords
        elif isinstance(event, Failed):
            self._over = True
            raise EngineError(event.error)
        return event

    async def result(self) -> Finished:
        """Returns the `Finished` of a request that doesn't stream."""
        async for event in self:
            if isinstance(event, Finished):
                return event
        raise RuntimeError("this generation has been read to its end before")

    def cancel(self) -> None:
        """Stops the generation if it is still running. Safe to call at any time and repeatedly."""
        self._over = True
        self.client.forget(self.request.id)

    def end_thoughts(self) -> None:
        """Ends the reasoning, if the generation is in it and its parameters allow this."""
        self.client.end_thoughts(self.request.id)

    def move(self, client: "GenerationClient") -> None:
        """Moves the request to the process of `client`, as its engine process has ended."""
        self.client, self.has_moved = client, True
        now = system.now()
        self._change(terms=later(self.request.terms, now - self._sent))
        self._sent = now
        self.put(Relaxed(self.request.id, []))  # resets what the last process reported

    @property
    def is_metered(self) -> bool:
        """True if a meter waits for its end."""
        return self._meter is not None

    def settle(self, timings: Timings | None) -> None:
        """Passes the tokens that the request has used to its meter. Only the first call has an
        effect."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.ended(timings or self._timings)

    def put(self, event: Event) -> None:
        """Adds the next event."""
        if not self.has_begun and self._is_taken(event):
            return
        if self._meter is not None and isinstance(event, Delta):
            self._timings = event.timings
        if isinstance(event, _LAST):
            self.last, self.ended = event, system.now()
        self._events.append(event)
        self._n_waiting += _weight(event)
        if self._n_waiting > AHEAD:
            self._set_timers()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_taken(self, event: Event) -> bool:
        """Records an event before the end of the wait for a slot. Returns True if it isn't for the
        reader."""
        if isinstance(event, Queued):
            self.queue = event
            return True
        if isinstance(event, Accepted):
            request = self.request
            if self._meter is not None and not request.terms.is_accepted:
                self._meter.accepted(event.n_tokens)
            # After a restart, no reader waits for the confirmation, and nothing is reserved again.
            terms = msgspec.structs.replace(request.terms, is_accepted=True)
            self._change(confirm=False, terms=terms)
            return not request.confirm
        if isinstance(event, _BEGUN):
            self.has_begun, self.queue = True, None
            if self._on_begun is not None:
                self._on_begun()
        return False

    def _change(self, **changes: object) -> None:
        """Changes the request, in case it is sent to another process."""
        self.request = msgspec.structs.replace(self.request, **changes)

    def _set_timers(self) -> None:
        """Starts the reader's grace periods if too many events are unread."""
        loop = asyncio.get_running_loop()
        if self._ahead is None and not self._is_paused and self._is_ahead():
            self._ahead = loop.call_later(PAUSE_GRACE, self._pause)
        if self._late is None and self._n_waiting > MAX_WAITING:
            self._late = loop.call_later(GRACE, self._give_up)

    def _is_ahead(self, part: float = 1.0) -> bool:
        """Returns whether the unread events exceed `part` of the bounds."""
        return len(self._events) > part * AHEAD or self._n_waiting > part * HEAVY

    def _pause(self) -> None:
        """Pauses the generation if its reader is still behind: it would occupy its slot for unread
        text."""
        self._ahead = None
        if not self._over and self._is_ahead() and not isinstance(self._events[-1], _LAST):
            self._is_paused = True
            self.client.pause(self.request.id)

    def _give_up(self) -> None:
        """Cancels the generation if its reader is still too far behind, most likely because the
        client doesn't read: unread events would accumulate until the generation ends."""
        self._late = None
        if self._n_waiting > MAX_WAITING:
            self.fail(invalid_request(_NOT_READ).info)

    def fail(self, error: ErrorInfo) -> None:
        """Cancels the request, whose reader gets `error` instead of its unread events. Does nothing
        if it has ended."""
        if self._over or (self._events and isinstance(self._events[-1], _LAST)):
            return
        self.client.forget(self.request.id)
        self._events.clear()
        self._n_waiting = 0
        self.put(Failed(self.request.id, error))


def later(terms: Terms, seconds: float) -> Terms:
    """Returns `terms` with the deadlines that are left after `seconds`."""
    if not (terms.prompt_ms or terms.timeout_ms):
        return terms
    gone = int(1e3 * seconds)
    return msgspec.structs.replace(
        terms,
        prompt_ms=max(1, terms.prompt_ms - gone) if terms.prompt_ms else 0,
        timeout_ms=max(1, terms.timeout_ms - gone) if terms.timeout_ms else 0,
    )


def _weight(event: Event) -> int:
    if isinstance(event, Delta) and event.probs:
        return 1 + sum(len(each.top) for each in event.probs)
    return 1
