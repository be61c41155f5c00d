"""Encodes media on a separate thread, so that steps don't wait for it.

Embeddings are kept up to a limit, so a repeated image isn't encoded again.
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

# ---- Steps and the encoder take turns on the device, as computing at the same time slows both
# down.
#
# Their threads spin while they wait for each other, so on the same cores both take several times as
# long. The encoder's work is cut into slices; a step can run between two slices.


SLICE_SECONDS = 0.004
"""Approximate length of a slice, and so the longest wait of a step for its turn."""
MAX_OPERATIONS = 4096
_FIRST_OPERATIONS = 8


class DeviceSlices:
    """Controls which of two threads may compute: the one that steps, or the one that encodes.

    While no step waits, the encoder may use the device. Before each step, the encoder gets the
    seconds that the step allows. If its last slice exceeds this time, the excess is subtracted from
    its next ones; unused time is lost.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or system.now
        self._changed = system.Condition()
        self._encoding = False  # the encoder has work
        self._computing = False  # a slice is running
        self._wanted = False  # a step is waiting
        self._stepping = False
        self._left = 0.0  # seconds that the encoder may use before the waiting step
        self._begun = 0.0  # start of the slice
        self._operations = _FIRST_OPERATIONS

    @contextmanager
    def step(self, allowed: float) -> Iterator[None]:
        """The context of a step, which has the device for itself. Before entering it, the encoder
        gets `allowed` seconds, if it has work."""
        with self._changed:
            self._left = min(0.0, max(self._left, -allowed)) + allowed
            self._wanted = True
            stepping.rest()  # the encoder has a watch of its own
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
        """The context of encoding, which begins with the first slice."""
        try:
            yield
        finally:
            with self._changed:
                self._end_slice()
                self._encoding = False
                self._changed.notify_all()

    def next_slice(self) -> int:
        """Ends the last slice, and waits for the encoder's turn. Returns the number of operations
        of the next slice."""
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
    """The part of `Projector` that the encoder uses."""

    batch_tokens: int

    def encode(
        self, chunks: Sequence[PreparedChunk], next_slice: Callable[[], int]
    ) -> list[Rows]: ...
    def rest(self) -> None: ...


@dataclass(eq=False, slots=True)
class EncodeOrder:
    """An order for the embeddings of one chunk, by one owner. Gets the `rows`, or the `error`."""

    owner: int
    id: int
    encoder: "MediaEncoder"
    rows: Rows | None = None
    error: BackendError | None = None

    @property
    def is_done(self) -> bool:
        return self.rows is not None or self.error is not None

    def release(self) -> None:
        """Release the order, done or not. To be called exactly once."""
        self.encoder.release(self)


@dataclass(eq=False, slots=True)
class _Job:
    """A chunk to encode, for all of its orders."""

    id: int
    chunk: PreparedChunk
    orders: list[EncodeOrder] = field(default_factory=list)


class MediaEncoder:
    """Encodes ordered chunks. Owners take turns, each in the order of its orders, so an owner with
    a hundred images doesn't delay others. Chunks of the same size are encoded together if the
    projector supports it.

    `woken` is called on the encoder's thread whenever orders are done. The most recently used
    embeddings stay after their release, up to `keep_bytes` together with the held ones. `turns`
    coordinates with steps on the same device.
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
        self._queues: OrderedDict[int, deque[_Job]] = OrderedDict()
        """The waiting jobs by owner; the next owner first."""
        self._jobs: dict[int, _Job] = {}  # waiting or running, by chunk id
        self._held: dict[int, int] = {}  # number of orders that hold rows, by chunk id
        self._kept: OrderedDict[int, Rows] = OrderedDict()  # all rows, least recently used first
        self._n_bytes = 0
        self._rejected = 0  # consecutive batches of which the projector encoded only one
        self._closing = False
        self.n_encoded = 0
        """The number of encoded chunks so far."""
        self._thread = system.start_thread(self._run, "encoder")

    # ---- for the step --------------------------------------------------------------------

    def order(self, owner: int, id: int, chunk: PreparedChunk) -> EncodeOrder:
        """Order the embeddings of `chunk`, whose id in texts is `id`. The order is done at once if
        they are kept. They are held until `release`."""
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
        """Release `order`, done or not. To be called exactly once for each."""
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
        """The ids of the chunks that are kept or being encoded: these ids must stay valid."""
        with self._changed:
            return [*self._kept, *self._jobs]

    def close(self) -> None:
        """End the thread after its current encoding. Waiting orders stay undone."""
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
        """The rows of at least the first job. Raises `BackendError` if the first one alone
        fails."""
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
            if len(jobs) > 1:  # any of them may have failed
                return self._encoded(jobs[:1])
            if isinstance(error, BackendError):
                raise
            log.exception("encoding failed")
            raise BackendError(f"{type(error).__name__}: {error}") from error
        finally:
            encoding.rest()

    def _next(self) -> list[_Job]:
        """The jobs to do next, which stay in their queues until they are done; empty at the end."""
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
        """The jobs that still have orders: the first one of each owner, then the second ones, and
        so on."""
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
        """Remove a finished job. The owner's next job comes after those of other owners."""
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
