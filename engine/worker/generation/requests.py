"""The requests of an engine: how they end, and the state of the slots."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from specllama.engine import system
from specllama.engine.errors import ErrorInfo
from specllama.engine.wire.replies import Begun, Event, Failed, SlotState, StopType, Timings
from specllama.engine.worker.generation.answering import Answering, finish
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.scheduling.limits import NEVER
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.tokens import TokenArray


class Requests:
    """The running requests, by id. Releases everything that a request holds when it ends. Belongs
    to the thread that steps."""

    def __init__(self, scheduler: Scheduler, answering: Answering) -> None:
        self.running: dict[int, Request] = {}
        """The requests that wait for a slot or have one."""
        self.next_deadline = NEVER
        """A time of `system.now` before which no deadline passes."""
        self._late: list[Request] = []  # requests of the last step whose newest tokens are late
        self._last: list[Request | None] = [None] * scheduler.n_slots  # of each slot
        self._scheduler = scheduler
        self._answering = answering

    def add(self, request: Request) -> None:
        self.running[request.id] = request
        self.next_deadline = min(self.next_deadline, request.deadlines.first)

    def of(self, chunks: Sequence[Chunk]) -> list[Request]:
        return [self.running[chunk.sequence.id] for chunk in chunks]

    def take_preempted(self) -> list[Request]:
        """The requests that have given their slots to others since the last call."""
        preempted = self._scheduler.slots.preempted
        found = [self.running[sequence.id] for sequence in preempted]
        preempted.clear()
        return found

    # ---- ends ----------------------------------------------------------------------------

    def stop(self, request: Request, why: StopType) -> list[Event]:
        """End a text without another token."""
        request.stop(why, system.now())
        return self.finish(request)

    def finish(self, request: Request) -> list[Event]:
        """The last events of a request whose text has ended."""
        events = finish(request)
        if request.sequence.slot >= 0:
            self._scheduler.finish(request.sequence)
        self.release(request)
        return events

    def expire(self, now: float) -> list[Event]:
        """End the texts whose deadlines have passed, whatever their requests wait for. Returns
        their events, after those of late tokens."""
        events = self.answer_late()
        self.free_finished()
        for request in [*self.running.values()]:
            if not (passed := request.deadlines.passed(now, in_prompt=request.in_prompt)):
                continue
            request.expire(passed, now)
            if not request.started:
                events.append(Begun(request.id))
            events += finish(request)
            self.cancel(request)
        left = (
            each.deadlines.following(in_prompt=each.in_prompt) for each in self.running.values()
        )
        self.next_deadline = min(left, default=NEVER)
        return events

    def fail(self, request: Request, error: ErrorInfo) -> Failed:
        """End a request whose cells may be invalid."""
        used = request.used if request.terms.is_metered else None
        self._scheduler.discard(request.sequence)
        self.release(request)
        return Failed(request.id, error, used)

    def fail_all(self, requests: Sequence[Request], message: str) -> list[Event]:
        """Fail all `requests`, whose step can't be evaluated. Returns their events, after those of
        late tokens."""
        events = self.answer_late()
        for request in requests:
            if request.has_ended:  # its events are made, but its cells may be invalid
                self._scheduler.discard(request.sequence)
                self.release(request)
            else:
                events.append(self.fail(request, ErrorInfo("server_error", message)))
        self.free_finished()
        return events

    def cancel(self, request: Request) -> Timings | None:
        """End a request without further events. Returns what a metered one has used."""
        used = request.used if request.terms.is_metered else None
        self._scheduler.cancel(request.sequence)
        self.release(request)
        return used

    def defer(self, request: Request, token: int, *, is_final: bool) -> bool:
        """As `Answering.defer`: returns True if `answer_late` makes the text of `token`."""
        is_late = self._answering.defer(request, token, is_final=is_final)
        if is_late:
            self._late.append(request)
        return is_late

    def postpone(self, request: Request, token: int) -> None:
        """`answer_late` makes the text of `token`, of which `Answering.continues` was true."""
        request.late = token
        self._late.append(request)

    def answer_late(self) -> list[Event]:
        """The events of all late tokens. The caller must call `free_finished` next."""
        return [event for request in self._late for event in self._answering.answer(request)]

    def free_finished(self, chunks: Sequence[Chunk] = ()) -> bool:
        """Free the slots of requests whose texts have ended with a late token. Takes back their
        `chunks`, which were evaluated meanwhile, like rejected proposals. Returns False if no text
        has ended."""
        ended = {r.id: r for r in self._late if r.has_ended and r.id in self.running}
        self._late = [request for request in self._late if request.late is not None]
        for chunk in chunks:
            if chunk.sequence.id in ended:
                self._scheduler.finish_before(chunk)
        for request in ended.values():
            self.cancel(request)  # also without a chunk: it may have been preempted
        return bool(ended)

    def release(self, request: Request) -> None:
        """Close and forget a request that the scheduler no longer has."""
        del self.running[request.id]
        if request.slot >= 0:
            self._last[request.slot] = request
        request.close()

    def close(self) -> None:
        for request in self.running.values():
            request.close()
        self.running.clear()

    # ---- looking inside ------------------------------------------------------------------

    def texts(self) -> Iterator[TokenArray]:
        """The tokens of all running requests, and of the last request of each slot."""
        for request in chain(self.running.values(), self._last):
            if request is not None:
                yield request.sequence.tokens.view()

    def slots(self, text: Callable[[TokenArray], str]) -> list[SlotState]:
        """The state of each slot; `text` detokenizes."""
        n_ctx = self._scheduler.n_ctx
        states: list[SlotState] = []
        for slot, last in enumerate(self._last):
            sequence = self._scheduler.in_slot(slot)
            request = last if sequence is None else self.running[sequence.id]
            if request is None:
                states.append(SlotState(id=slot, n_ctx=n_ctx))
            else:
                states.append(request.slot_state(slot, n_ctx, text))
        return states
