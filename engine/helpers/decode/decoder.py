"""Decodes images, sounds, videos and PDF files, which are not trusted, in separate processes
(`engine.helpers.decode.decode_main`)."""

import asyncio
import importlib.util
import io
import logging
import signal
from functools import cache, partial
from typing import Final

from specllama.engine.errors import invalid_request
from specllama.engine.helpers.decode.decode_jobs import (
    Answer,
    Decoded,
    DecodedPart,
    DecodeJob,
    DecodeRefused,
    DecodingStarted,
    Sample,
    answer_decoder,
)
from specllama.engine.helpers.pool import PROCESSES, Helper, HelperPool
from specllama.engine.wire.commands import bare_environment, decode_command
from specllama.engine.wire.framing import FrameError, Started, frame
from specllama.engine.wire.process import GRACE, Child, ChildError

log = logging.getLogger("specllama.engine.helpers.decode")

MEMORY_LIMIT: Final = 2 << 30  # bytes of address space, including the interpreter
PROCESSOR_LIMIT: Final = 20.0  # s of CPU time of one job
TIME_LIMIT: Final = 120.0  # s of one job, on a busy machine
VIDEO_FACTOR: Final = 3  # times PROCESSOR_LIMIT for a video
VIDEO_IDLE: Final = 60.0  # s without a video after which the process ends; it keeps much memory
LARGE: Final = 1 << 20  # bytes of a job

_TOO_LONG: Final = "decoding it takes too long"
_TOO_LONG_CODE: Final = -signal.SIGXCPU if hasattr(signal, "SIGXCPU") else None


@cache
def reads_videos() -> bool:
    """Returns whether the library for videos, an optional dependency, is installed."""
    return importlib.util.find_spec("av") is not None


class Decoders:
    """Decodes files. A video occupies a process of its own, so that images don't wait for it."""

    def __init__(
        self,
        *,
        processes: int = PROCESSES,
        memory_limit: int = MEMORY_LIMIT,
        processor_limit: float = PROCESSOR_LIMIT,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self._time_limit = time_limit
        self._pool = HelperPool[Answer | DecodedPart](
            "a process that decodes media",
            decode_command(memory_limit, processor_limit, time_limit),
            answer_decoder,
            processes=processes,
            env=bare_environment(),
        )
        self._videos = HelperPool[Answer | DecodedPart](
            "a process that decodes videos",
            decode_command(memory_limit, VIDEO_FACTOR * processor_limit, time_limit, videos=True),
            answer_decoder,
            processes=1,
            env=bare_environment(),
            idle=VIDEO_IDLE,
        )

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [*self._pool.pids, *self._videos.pids]

    async def decode(self, job: DecodeJob) -> Decoded:
        """Returns the pixels, samples, pages or frames of a file.

        Raises EngineError: invalid_request_error if the file can't be decoded within the limits, or
        crashes the process; server_error if no process can be started; unavailable_error after
        `stop`. Cancelling ends the work.
        """
        data = frame(job)
        if len(data) > LARGE:
            await asyncio.sleep(0)  # writing copies the data: let other tasks run first
        pool = self._videos if isinstance(job, Sample) else self._pool
        try:
            answer = await pool.run(partial(self._answer, data=data), cancels=True)
        except ChildError as e:
            log.warning("decoding a file crashed its process with code %d", e.code)
            raise invalid_request("it makes its decoder crash") from e
        if isinstance(answer, DecodeRefused):
            raise invalid_request(answer.reason)
        return answer

    async def stop(self) -> None:
        """Ends all processes; open jobs fail."""
        await asyncio.gather(self._pool.stop(), self._videos.stop())

    async def _answer(
        self, helper: Helper[Answer | DecodedPart], data: bytes
    ) -> Decoded | DecodeRefused:
        """Raises ChildError if the process ends."""
        try:
            async with asyncio.timeout(self._time_limit):
                answer = await _whole(helper.child, data)
        except TimeoutError:
            helper.is_fit = False
            raise invalid_request(_TOO_LONG) from None
        except ChildError as e:
            if e.code == _TOO_LONG_CODE:
                raise invalid_request(_TOO_LONG) from e
            raise
        helper.is_fit = not (isinstance(answer, DecodeRefused) and answer.exhausted)
        return answer


async def _whole(
    process: Child[Started | Answer | DecodedPart], data: bytes
) -> Decoded | DecodeRefused:
    """Returns the complete answer to the frame `data`. Raises ChildError if the process ends or its
    answer is invalid."""
    process.say(data)
    try:
        begun = await process.receive()
        if isinstance(begun, DecodeRefused):
            return begun
        if not isinstance(begun, DecodingStarted) or begun.n_bytes > MEMORY_LIMIT:
            raise FrameError("not an answer")
        found = io.BytesIO()  # `getvalue` returns the data without a copy
        while found.tell() < begun.n_bytes:
            part = await process.receive()
            if not isinstance(part, DecodedPart) or not part.data:
                raise FrameError("not a part")
            found.write(part.data)
    except (EOFError, FrameError) as error:
        raise ChildError(await process.reap(GRACE)) from error
    return Decoded(found.getvalue(), begun.width, begun.height, begun.fps, begun.is_reduced)
