"""Answers that run on their own: kept streams, responses in the background, and texts whose
thoughts can be ended."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from specllama.engine import system
from specllama.engine.errors import unavailable
from specllama.engine.models.generation import Generation
from specllama.handlers.http import schemas

# ---- Streams that clients may come back to: what was sent of each, and what still comes.
#
# A kept stream goes on when its client is gone. It belongs to a conversation of one API key, which
# has one at most; another one takes its place. Nothing of this is on disk.


log = logging.getLogger(__name__)

MAX_STREAM_BYTES = 4 << 20
"""What is kept of one stream; of a longer one, its beginning goes."""
MAX_BYTES = 256 << 20
MAX_STREAMS = 1024
"""Bounds for all streams together. Complete ones go for them, the first that was first."""
SECONDS = 300.0  # that a complete stream is kept
SEPARATOR = "::"
"""Stands between a conversation and the name of a model in the ids of some clients."""


class Owner(NamedTuple):
    """Whose stream it is: the API key of the request, and the conversation that it names."""

    key: bytes
    conversation: str


class StreamStatus(msgspec.Struct, frozen=True):
    """Times are seconds since 1970; `completed_at` is 0 while more may come."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


class OffsetLostError(Exception):
    """The bytes that are asked for are not kept any more."""


class KeptStream:
    """The bytes of one stream. Belongs to the event loop."""

    def __init__(self, owner: Owner, store: "KeptStreams") -> None:
        self.owner = owner
        self.started_at = int(time.time())
        self.completed_at = 0
        self.changed = system.now()  # s, the last time that something came
        self._store = store
        self._chunks = bytearray()
        self._n_dropped = 0
        self._done = False
        self._changed = asyncio.Event()
        self._cancel: Callable[[], object] | None = None

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return len(self._chunks)

    @property
    def n_dropped(self) -> int:
        """Bytes at the beginning that are not kept any more."""
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
        """Note what ends the work for this stream."""
        self._cancel = cancel
        if self._done:
            cancel()

    def append(self, data: bytes) -> None:
        """Nothing is added behind the end."""
        if self._done or not data:
            return
        self._chunks += data
        self.changed = system.now()
        self._store.grown(self, len(data))
        self._wake()

    def drop(self, n_bytes: int) -> None:
        """Forget so many bytes of the beginning, if there are."""
        n_bytes = min(max(n_bytes, 0), self.size)
        del self._chunks[:n_bytes]
        self._n_dropped += n_bytes
        self._store.n_bytes -= n_bytes

    def finish(self) -> None:
        """Nothing more comes; the stream is kept for a while."""
        if not self._done:
            self._done = True
            self.completed_at = int(time.time())
            self._wake()
            self._store.finished(self)

    def cancel(self) -> None:
        """End the stream, and the work for it."""
        working = not self._done
        self.finish()
        if working and self._cancel is not None:
            self._cancel()

    async def read(self, offset: int = 0) -> AsyncIterator[bytes]:
        """The bytes behind `offset`, as they come, to the end; an empty piece first. Raises
        OffsetLostError for one that isn't kept, also if the reader has fallen behind."""
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
        self._complete: dict[Owner, asyncio.TimerHandle] = {}  # the first that was, first

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, owner: Owner) -> KeptStream | None:
        """A new stream in the place of the one that `owner` has, which is cancelled. None if
        there are too many that are not complete."""
        self.remove(owner)
        if len(self._streams) >= self._max_streams:
            if not self._complete:
                log.warning("a stream is not kept: %d others are running", len(self))
                return None
            self._forget(next(iter(self._complete)))
        stream = self._streams[owner] = KeptStream(owner, self)
        return stream

    def get(self, owner: Owner) -> KeptStream | None:
        return self._streams.get(owner)

    def remove(self, owner: Owner) -> None:
        """Cancel the stream of `owner`, if there is one, and keep nothing of it."""
        if (stream := self._streams.get(owner)) is not None:
            stream.cancel()
            self._forget(owner)

    def discard(self, stream: KeptStream) -> None:
        """Keep nothing of `stream`, which has come to nothing."""
        stream.finish()
        if self._streams.get(stream.owner) is stream:
            self._forget(stream.owner)

    def find(self, key: bytes, conversations: Iterable[str]) -> list[KeptStream]:
        """The streams of `conversations`, also those with the name of a model behind them."""
        named: dict[str, list[KeptStream]] = {}
        for stream in self._streams.values():
            if stream.owner.key == key:
                for name in _names(stream.owner.conversation):
                    named.setdefault(name, []).append(stream)
        found = [stream for each in conversations for stream in named.get(each, ())]
        return [*dict.fromkeys(found)]

    def close(self) -> None:
        """Cancel all."""
        for owner in [*self._streams]:
            self.remove(owner)

    def finished(self, stream: KeptStream) -> None:
        owner = stream.owner
        if self._streams.get(owner) is stream:
            loop = asyncio.get_running_loop()
            self._complete[owner] = loop.call_later(self._seconds, self._forget, owner)

    def grown(self, stream: KeptStream, n_bytes: int) -> None:
        """Make room. If complete streams don't suffice, the longest lose their beginnings."""
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
    """The conversation, and what stands before each separator in it."""
    parts = conversation.split(SEPARATOR)
    return [SEPARATOR.join(parts[:n]) for n in range(1, len(parts) + 1)]


# ---- Work that goes on after its request has been answered.


MAX_JOBS = 1000
"""The most that may run or wait; a client that waits for its answer can't ask for so many."""


JobKey = tuple[str, str]
"""An owner, and an id."""


@dataclass(frozen=True)
class _Job:
    shown: schemas.ResponseObject
    asked: Sequence[schemas.ResponseStoredItem]
    task: asyncio.Task[None]


class BackgroundJobs:
    """Running work by its key, each with the response that is shown of it meanwhile, and what it
    was asked. Whoever works keeps the result elsewhere; nothing here outlives the server."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}

    def check_room(self) -> None:
        """Raises EngineError (unavailable_error) if there are too many."""
        if len(self._jobs) >= MAX_JOBS:
            raise unavailable(f"there are {MAX_JOBS} responses in the background; try again later")

    def start(
        self,
        key: JobKey,
        shown: schemas.ResponseObject,
        work: Coroutine[Any, Any, None],
        asked: Sequence[schemas.ResponseStoredItem] = (),
    ) -> None:
        """Begins with `work`, which may change `shown` and handles its own errors."""
        task = asyncio.create_task(work)
        self._jobs[key] = _Job(shown, asked, task)
        task.add_done_callback(lambda _: self._jobs.pop(key, None))

    def shown(self, key: JobKey) -> schemas.ResponseObject | None:
        job = self._jobs.get(key)
        return None if job is None else job.shown

    def asked(self, key: JobKey) -> Sequence[schemas.ResponseStoredItem] | None:
        """The items that the running work of this key is an answer to."""
        job = self._jobs.get(key)
        return None if job is None else job.asked

    async def cancel(self, key: JobKey) -> None:
        """Ends the work, if there is some of this key, and waits for the end."""
        if (job := self._jobs.get(key)) is not None:
            job.task.cancel()
            await asyncio.wait({job.task})

    async def stop(self) -> None:
        """Ends all work."""
        await asyncio.gather(*(self.cancel(key) for key in list(self._jobs)))


# ---- Running answers whose thoughts a client may end, by the ids of the answers.


Key = tuple[bytes, str]
"""The API key of a request, and the id of its answer."""


class GenerationControl:
    """The answers that are being generated. `may_end`: a client may end its thoughts."""

    def __init__(self) -> None:
        self._running: dict[Key, tuple[Sequence[Generation], bool]] = {}

    @contextmanager
    def running(self, key: Key, texts: Sequence[Generation], *, may_end: bool) -> Iterator[None]:
        self._running[key] = (texts, may_end)
        try:
            yield
        finally:
            del self._running[key]

    def end_thoughts(self, key: Key) -> str:
        """Ends the thoughts of an answer's texts. Returns "", or why it can't be done."""
        texts, may_end = self._running.get(key, ((), False))
        if not texts:
            return "no active completion for this id"
        if not may_end:
            return "reasoning control not enabled for this completion"
        for text in texts:
            text.end_thoughts()
        return ""
