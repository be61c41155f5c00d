"""Generations that clients control with later requests: resumable streams, responses in the
background, and answers whose thoughts can be ended."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from specllama.engine import system
from specllama.engine.errors import invalid_request, unavailable
from specllama.engine.models.generation import Generation
from specllama.handlers.http import schemas
from specllama.handlers.running.response_store import (
    CLAIM_SECONDS,
    HEARTBEAT,
    ClaimedResponse,
    ResponseStore,
)
from specllama.handlers.running.stores import StoreError

# ---- Streams that a client can resume after it has disconnected.
#
# A kept stream continues without its client. It belongs to a conversation of one API key. A
# conversation has at most one stream; a new one replaces it. Streams are only in memory. A request
# that is still being prepared has no stream yet: its model may have to be loaded first.


T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_STREAM_BYTES = 4 << 20
"""The limit for one stream; the beginning of a longer one is dropped."""
MAX_BYTES = 256 << 20
MAX_STREAMS = 1024
"""Limits for all streams together. If one is exceeded, complete streams are removed in the order of
their completion."""
SECONDS = 300.0  # until a complete stream is removed
SEPARATOR = "::"
"""Separates a conversation from the name of a model in the ids of some clients."""


class Owner(NamedTuple):
    """The owner of a stream: the API key of the request, and its conversation."""

    key: str
    conversation: str


class StreamStatus(msgspec.Struct, frozen=True):
    """The state of a stream. Times are seconds since 1970; `completed_at` is 0 until the stream is
    complete."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


class OffsetLostError(Exception):
    """The requested bytes have been dropped."""


class KeptStream:
    """The bytes of one stream. Belongs to the event loop."""

    def __init__(self, owner: Owner, store: "KeptStreams") -> None:
        self.owner = owner
        self.started_at = int(time.time())
        self.completed_at = 0
        self.changed = system.now()  # s, when bytes were added last
        self._store = store
        self._chunks = bytearray()
        self._n_dropped = 0
        self._done = False
        self._changed = asyncio.Event()
        self._cancel: Callable[[], object] | None = None

    @property
    def size(self) -> int:
        """The number of bytes in memory."""
        return len(self._chunks)

    @property
    def n_dropped(self) -> int:
        """The number of bytes that were dropped at the beginning."""
        return self._n_dropped

    @property
    def done(self) -> bool:
        return self._done

    @property
    def status(self) -> StreamStatus:
        total = self._n_dropped + self.size
        conversation = self.owner.conversation
        return StreamStatus(conversation, self.done, total, self.started_at, self.completed_at)

    def made_by(self, cancel: Callable[[], object]) -> None:
        """Sets the function that ends the work for this stream. Calls it if the stream has ended
        already."""
        self._cancel = cancel
        if self._done:
            cancel()

    def append(self, data: bytes) -> None:
        """Adds bytes, unless the stream is complete."""
        if self._done or not data:
            return
        self._chunks += data
        self.changed = system.now()
        self._store.grown(self, len(data))
        self._wake()

    def drop(self, n_bytes: int) -> None:
        """Drops up to `n_bytes` at the beginning."""
        n_bytes = min(max(n_bytes, 0), self.size)
        del self._chunks[:n_bytes]
        self._n_dropped += n_bytes
        self._store.n_bytes -= n_bytes

    def finish(self) -> None:
        """Completes the stream, which stays in memory for a while."""
        if not self._done:
            self._done = True
            self.completed_at = int(time.time())
            self._wake()
            self._store.finished(self)

    def cancel(self) -> None:
        """Ends the stream, and the work for it."""
        working = not self._done
        self.finish()
        if working and self._cancel is not None:
            self._cancel()

    async def read(self, offset: int = 0) -> AsyncIterator[bytes]:
        """Yields an empty piece, and then the bytes from `offset` to the end, as they arrive.
        Raises OffsetLostError if the next bytes have been dropped, for example because the reader
        is too slow."""
        if offset < self._n_dropped:
            raise OffsetLostError
        yield b""
        while True:
            changed = self._changed
            if offset < self._n_dropped:
                raise OffsetLostError
            if data := bytes(self._chunks[offset - self._n_dropped :]):
                offset += len(data)
                yield data
            elif self._done:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class KeptStreams:
    """All streams of a server."""

    def __init__(
        self,
        *,
        max_streams: int = MAX_STREAMS,
        max_bytes: int = MAX_BYTES,
        max_stream_bytes: int = MAX_STREAM_BYTES,
        seconds: float = SECONDS,
    ) -> None:
        self.max_stream_bytes = max_stream_bytes
        self._max_streams = max_streams
        self._max_bytes = max_bytes
        self._seconds = seconds
        self.n_bytes = 0
        self._streams: dict[Owner, KeptStream] = {}
        self._preparing: dict[Owner, asyncio.Task[Any]] = {}
        self._complete: dict[Owner, asyncio.TimerHandle] = {}  # in the order of completion

    def __len__(self) -> int:
        return len(self._streams)

    async def prepared(self, owner: Owner, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`, after which the stream of `owner` is opened at once. The
        owner's previous stream is cancelled. Raises EngineError (invalid_request_error) if the
        stream is removed meanwhile."""
        self.remove(owner)
        task = asyncio.create_task(work)
        self._preparing[owner] = task
        try:
            result = await task
        except asyncio.CancelledError:
            if self.is_preparing(owner, task):  # the request itself is cancelled
                raise
        else:
            if self.is_preparing(owner, task):
                return result
        finally:
            if self.is_preparing(owner, task):
                del self._preparing[owner]
        raise invalid_request("request cancelled by a stop while the model was loading")

    def is_preparing(self, owner: Owner, task: asyncio.Task[Any] | None = None) -> bool:
        """Whether a request of `owner` is being prepared: by `task`, if given."""
        running = self._preparing.get(owner)
        return running is not None and task in (None, running)

    def open(self, owner: Owner) -> KeptStream | None:
        """Returns a new stream for `owner`, and cancels the owner's previous one. Returns None if
        too many streams are incomplete."""
        self.remove(owner)
        if len(self._streams) >= self._max_streams:
            if not self._complete:
                log.warning("a stream can't be resumed: %d others are running", len(self))
                return None
            self._forget(next(iter(self._complete)))
        stream = self._streams[owner] = KeptStream(owner, self)
        return stream

    def get(self, owner: Owner) -> KeptStream | None:
        return self._streams.get(owner)

    def remove(self, owner: Owner) -> None:
        """Cancels and removes the stream of `owner`, or the request that is prepared for it, if
        there is one."""
        if (task := self._preparing.pop(owner, None)) is not None:
            task.cancel()
        if (stream := self._streams.get(owner)) is not None:
            stream.cancel()
            self._forget(owner)

    def discard(self, stream: KeptStream) -> None:
        """Ends and removes `stream`, which has no bytes."""
        stream.finish()
        if self._streams.get(stream.owner) is stream:
            self._forget(stream.owner)

    def find(self, key: str, conversations: Iterable[str]) -> list[KeptStream]:
        """Returns the streams of `conversations`, also those whose id continues with a separator
        and a model's name."""
        named: dict[str, list[KeptStream]] = {}
        for stream in self._streams.values():
            if stream.owner.key == key:
                for name in _names(stream.owner.conversation):
                    named.setdefault(name, []).append(stream)
        found = [stream for each in conversations for stream in named.get(each, ())]
        return [*dict.fromkeys(found)]

    def close(self) -> None:
        """Cancels and removes all streams."""
        for owner in [*self._streams, *self._preparing]:
            self.remove(owner)

    def finished(self, stream: KeptStream) -> None:
        owner = stream.owner
        if self._streams.get(owner) is stream:
            loop = asyncio.get_running_loop()
            self._complete[owner] = loop.call_later(self._seconds, self._forget, owner)

    def grown(self, stream: KeptStream, n_bytes: int) -> None:
        """Counts `n_bytes` more, and enforces the limits. Complete streams are removed first; then
        the longest streams lose their beginnings."""
        self.n_bytes += n_bytes
        stream.drop(stream.size - self.max_stream_bytes)
        while self.n_bytes > self._max_bytes and self._complete:
            self._forget(next(iter(self._complete)))
        while self.n_bytes > self._max_bytes:
            longest = max(self._streams.values(), key=lambda each: each.size)
            longest.drop(self.n_bytes - self._max_bytes)

    def _forget(self, owner: Owner) -> None:
        self.n_bytes -= self._streams.pop(owner).size
        if (timer := self._complete.pop(owner, None)) is not None:
            timer.cancel()


def _names(conversation: str) -> list[str]:
    """Returns the conversation's id, and its prefixes before each separator."""
    parts = conversation.split(SEPARATOR)
    return [SEPARATOR.join(parts[:n]) for n in range(1, len(parts) + 1)]


# ---- Responses in the background, which are generated after their request has been answered.


MAX_JOBS = 1000
"""The maximum number of running and waiting jobs. A limit is needed because a client can start jobs
without waiting for them."""


JobKey = tuple[str, str]
"""An owner, and the id of a response."""

JobStatus = Callable[[], schemas.ResponseStatus | None]
"""Returns the state of a job's response; None when its generation has ended."""


@dataclass(frozen=True)
class _Job:
    task: asyncio.Task[None]
    status: JobStatus


class BackgroundJobs:
    """Running jobs by key. Each generates a response that `store` has, and stores its result; jobs
    end with the server. A job is cancelled if its response was cancelled or deleted by another
    process, or is lost."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._jobs: dict[JobKey, _Job] = {}
        self._n_opening = 0
        self._renewing: asyncio.Task[None] | None = None

    @contextmanager
    def room(self) -> Iterator[None]:
        """A context in which one job is started. Raises EngineError (unavailable_error) if there
        are too many."""
        if len(self._jobs) + self._n_opening >= MAX_JOBS:
            raise unavailable(f"there are {MAX_JOBS} responses in the background; try again later")
        self._n_opening += 1
        try:
            yield
        finally:
            self._n_opening -= 1

    def start(self, key: JobKey, work: Coroutine[Any, Any, None], status: JobStatus) -> None:
        """Starts `work`, which handles its own errors, for a response that is claimed."""
        task = asyncio.create_task(work)
        self._jobs[key] = _Job(task, status)
        task.add_done_callback(lambda _: self._jobs.pop(key, None))
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        """Renews the claims of all jobs, as long as there are any."""
        try:
            while self._jobs:
                await self._renew_once()
                await asyncio.sleep(HEARTBEAT)
        finally:
            self._renewing = None

    async def _renew_once(self) -> None:
        claimed = [
            ClaimedResponse(*key, status)
            for key, job in self._jobs.items()
            if (status := job.status()) is not None
        ]
        try:
            ended = await self._store.renew(claimed, CLAIM_SECONDS) if claimed else []
        except StoreError as error:
            log.error("responses in the background may be lost: %s", error)
            return
        for each in ended:
            job = self._jobs.get((each.owner, each.id))
            # The job itself ends its claim when it stores its result.
            if job is not None and job.status() is not None:
                job.task.cancel()

    async def cancel(self, key: JobKey) -> None:
        """Cancels the job with this key, if one runs, and waits for its end."""
        if (job := self._jobs.get(key)) is not None:
            job.task.cancel()
            await asyncio.wait({job.task})

    async def stop(self) -> None:
        """Cancels all jobs."""
        await asyncio.gather(*(self.cancel(key) for key in list(self._jobs)))
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})


# ---- Running answers by id, whose thoughts a client can end.


Key = tuple[str, str]
"""The API key of a request, and the id of its answer."""


class GenerationControl:
    """The running answers. With `may_end`, a client can end the thoughts of an answer."""

    def __init__(self) -> None:
        self._running: dict[Key, tuple[Sequence[Generation], bool]] = {}

    @contextmanager
    def running(self, key: Key, texts: Sequence[Generation], *, may_end: bool) -> Iterator[None]:
        """A context during which the answer with `key` is running."""
        self._running[key] = (texts, may_end)
        try:
            yield
        finally:
            del self._running[key]

    def end_thoughts(self, key: Key) -> str:
        """Ends the thoughts of an answer's texts. Returns "", or the reason for a failure."""
        texts, may_end = self._running.get(key, ((), False))
        if not texts:
            return "no active completion for this id"
        if not may_end:
            return "reasoning control not enabled for this completion"
        for text in texts:
            text.end_thoughts()
        return ""
