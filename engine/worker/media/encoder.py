"""Encodes media on a thread of its own, so that no step waits for it.

What was encoded is kept, up to a limit: an image that comes again isn't encoded again.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from specllama.engine import system
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import PreparedChunk, Rows
from specllama.engine.worker.backend.watch import encoding, stepping

log = logging.getLogger("specllama.engine.encoder")

# ---- Steps and the encoder use the device in turns, as two that compute at once hinder each
# other.
#
# Their threads wait for each other by spinning, so on the same cores either takes several times as
# long. The encoder's work is cut into slices; between two of them a step can have its turn.


SLICE_SECONDS = 0.004
"""About the length of a slice, and so a step's longest wait for its turn."""
MAX_OPERATIONS = 4096
_FIRST_OPERATIONS = 8


class DeviceSlices:
    """Who may compute now. One thread steps, and one encodes.

    While no step wants the device, the encoder has it. In front of each step it may use it for the
    seconds that the step allows; what the last slice took too many of is kept from the next ones,
    and what it has not used is gone.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or system.now
        self._changed = system.Condition()
        self._encoding = False  # there is something to encode
        self._computing = False  # a slice
        self._wanted = False  # by a step, which waits
        self._stepping = False
        self._left = 0.0  # seconds of the encoder before a step that waits
        self._begun = 0.0  # the slice
        self._operations = _FIRST_OPERATIONS

    @contextmanager
    def step(self, allowed: float) -> Iterator[None]:
        """The device belongs to a step while this lasts. Before, the encoder gets `allowed` seconds
        of it, if it has work."""
        with self._changed:
            self._left = min(0.0, max(self._left, -allowed)) + allowed
            self._wanted = True
            stepping.rest()  # the encoder is watched itself
            self._changed.wait_for(self._is_free)
            stepping.begin("a step")
            self._wanted, self._stepping = False, True
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()

    def _is_free(self) -> bool:
        return not self._computing and (not self._encoding or self._left <= 0)

    @contextmanager
    def encode(self) -> Iterator[None]:
        """Something is encoded while this lasts, from the first slice on."""
        try:
            yield
        finally:
            with self._changed:
                self._end_slice()
                self._encoding = False
                self._changed.notify_all()

    def next_slice(self) -> int:
        """Waits for the encoder's turn. The operations of the slice that begins; the one before has
        ended."""
        with self._changed:
            self._end_slice()
            self._encoding = True
            self._changed.notify_all()
            self._changed.wait_for(self._may_encode)
            self._computing = True
            self._begun = self._clock()
            return self._operations

    def _may_encode(self) -> bool:
        return not self._stepping and (not self._wanted or self._left > 0)

    def _end_slice(self) -> None:
        if self._computing:
            self._computing = False
            seconds = self._clock() - self._begun
            self._left -= seconds
            ratio = SLICE_SECONDS / max(1e-9, seconds)
            wanted = round(self._operations * min(2.0, max(0.25, ratio)))
            self._operations = min(MAX_OPERATIONS, max(1, wanted))


class Encodes(Protocol):
    """The part of `Projector` that is used here."""

    batch_tokens: int

    def encode(
        self, chunks: Sequence[PreparedChunk], next_slice: Callable[[], int]
    ) -> list[Rows]: ...
    def rest(self) -> None: ...


@dataclass(eq=False, slots=True)
class EncodeOrder:
    """The embeddings of one chunk, for one owner: its `rows`, once they are there, or the `error`
    that came instead."""

    owner: int
    id: int
    encoder: "MediaEncoder"
    rows: Rows | None = None
    error: BackendError | None = None

    @property
    def is_done(self) -> bool:
        return self.rows is not None or self.error is not None

    def release(self) -> None:
        """It isn't needed any more, whether it is done or not. Once for each."""
        self.encoder.release(self)


@dataclass(eq=False, slots=True)
class _Job:
    """A chunk that is to be encoded, for all who have ordered it."""

    id: int
    chunk: PreparedChunk
    orders: list[EncodeOrder] = field(default_factory=list)


class MediaEncoder:
    """Encodes what is ordered, in the order in which it came, but of each owner in turns: one with
    a hundred images doesn't keep others waiting. Chunks of one size go together where the projector
    takes them together.

    `woken` is called on the encoder's thread whenever orders are done. Of the embeddings that
    nobody holds any more, the last ones stay: `keep_bytes` with those that are held. `turns` are
    those with steps that use the same device.
    """

    def __init__(
        self,
        projector: Encodes,
        keep_bytes: int,
        woken: Callable[[], None],
        turns: DeviceSlices | None = None,
    ) -> None:
        self._projector = projector
        self._turns = turns or DeviceSlices()
        self._keep_bytes = keep_bytes
        self._woken = woken
        self._changed = system.Condition()
        self._queues: OrderedDict[int, deque[_Job]] = OrderedDict()  # by owner, the next one first
        self._jobs: dict[int, _Job] = {}  # that wait or are being encoded
        self._held: dict[int, int] = {}  # how many orders hold the rows of a chunk
        self._kept: OrderedDict[int, Rows] = OrderedDict()  # all rows, the oldest first
        self._n_bytes = 0
        self._rejected = 0  # how often in a row the projector has taken one of several
        self._closing = False
        self.n_encoded = 0
        """Chunks so far."""
        self._thread = system.start_thread(self._run, "encoder")

    # ---- for the step --------------------------------------------------------------------

    def order(self, owner: int, id: int, chunk: PreparedChunk) -> EncodeOrder:
        """The embeddings of `chunk`, whose id in texts is `id`: done at once if they are kept.
        They are held until `release`."""
        order = EncodeOrder(owner, id, self)
        with self._changed:
            if (rows := self._kept.get(id)) is not None:
                self._kept.move_to_end(id)
                self._hold(order, rows)
            elif (job := self._jobs.get(id)) is not None:
                job.orders.append(order)
            else:
                job = self._jobs[id] = _Job(id, chunk, [order])
                self._queues.setdefault(owner, deque()).append(job)
                self._changed.notify()
        return order

    def release(self, order: EncodeOrder) -> None:
        """`order` is not needed any more, whether it is done or not. Once for each."""
        with self._changed:
            if order.rows is not None:
                self._held[order.id] -= 1
                if not self._held[order.id]:
                    del self._held[order.id]
                self._forget_oldest()
            elif order.error is None:
                self._jobs[order.id].orders.remove(order)
            order.rows = None

    def ids(self) -> list[int]:
        """The chunks that are kept or on their way: their ids have to go on meaning them."""
        with self._changed:
            return [*self._kept, *self._jobs]

    def close(self) -> None:
        """End the thread; what it is encoding is finished first. Orders that wait stay undone."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # ---- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while jobs := self._next():
            try:
                self._done(jobs, self._encoded(jobs))
            except BackendError as error:
                self._failed(jobs[0], error)
            self._woken()

    def _encoded(self, jobs: Sequence[_Job]) -> list[Rows]:
        """The rows of the first ones. Raises `BackendError` if the very first one fails."""
        chunks = [job.chunk for job in jobs]
        n_tokens = sum(chunk.n_tokens for chunk in chunks)

        def next_slice() -> int:
            encoding.rest()
            n_operations = self._turns.next_slice()
            encoding.begin("the encoding of media", n_tokens)
            return n_operations

        try:
            encoding.begin("the preparation of media", n_tokens)
            with self._turns.encode():
                return self._projector.encode(chunks, next_slice)
        except Exception as error:
            encoding.failed()
            if len(jobs) > 1:  # it may have been any of them
                return self._encoded(jobs[:1])
            if isinstance(error, BackendError):
                raise
            log.exception("encoding failed")
            raise BackendError(f"{type(error).__name__}: {error}") from error
        finally:
            encoding.rest()

    def _next(self) -> list[_Job]:
        """The jobs to do next, which stay in their queues until they are done; none at the end."""
        rested = False
        while True:
            with self._changed:
                while not (self._closing or self._queues) and rested:
                    self._changed.wait()
                if self._closing:
                    return []
                if jobs := self._chosen():
                    return jobs
            self._projector.rest()
            rested = True

    def _chosen(self) -> list[_Job]:
        jobs: list[_Job] = []
        n_tokens = 0
        for job in self._waiting():
            first = jobs[0].chunk if jobs else job.chunk
            if (job.chunk.kind, job.chunk.n_tokens) != (first.kind, first.n_tokens):
                continue
            n_tokens += job.chunk.n_tokens
            if jobs and (self._rejected > 2 or n_tokens > self._projector.batch_tokens):
                break
            jobs.append(job)
        return jobs

    def _waiting(self) -> Iterator[_Job]:
        """The jobs that somebody still wants: the first one of each owner, then the second ones,
        and so on."""
        for owner, queue in [*self._queues.items()]:
            wanted = deque(job for job in queue if job.orders)
            for job in queue:
                if not job.orders:
                    del self._jobs[job.id]
            self._queues[owner] = wanted
            if not wanted:
                del self._queues[owner]
        queues = list(self._queues.values())
        for place in range(max(map(len, queues), default=0)):
            yield from (queue[place] for queue in queues if place < len(queue))

    def _done(self, jobs: Sequence[_Job], rows: Sequence[Rows]) -> None:
        with self._changed:
            if len(rows) > 1:
                self._rejected = 0
            elif len(jobs) > 1:
                self._rejected += 1
            self.n_encoded += len(rows)
            for job, made in zip(jobs, rows, strict=False):
                self._remove(job)
                self._kept[job.id] = made
                self._n_bytes += made.nbytes
                for order in job.orders:
                    self._hold(order, made)
            self._forget_oldest()

    def _failed(self, job: _Job, error: BackendError) -> None:
        with self._changed:
            self._remove(job)
            for order in job.orders:
                order.error = error

    def _remove(self, job: _Job) -> None:
        """`job` is done: its owner's next one comes behind those of the others."""
        del self._jobs[job.id]
        for owner, queue in self._queues.items():
            if job in queue:
                queue.remove(job)
                self._queues.move_to_end(owner)
                if not queue:
                    del self._queues[owner]
                return

    def _hold(self, order: EncodeOrder, rows: Rows) -> None:
        order.rows = rows
        self._held[order.id] = self._held.get(order.id, 0) + 1

    def _forget_oldest(self) -> None:
        for id in [*self._kept]:
            if self._n_bytes <= self._keep_bytes:
                break
            if id not in self._held:
                self._n_bytes -= self._kept.pop(id).nbytes
