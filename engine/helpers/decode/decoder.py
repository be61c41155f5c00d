"""Decodes images, sounds and PDF files, which are not trusted, in separate processes
(`engine.helpers.decode.decode_main`)."""

import asyncio
import io
import logging
import signal
from functools import partial
from typing import Final

from specllama.engine.errors import invalid_request
from specllama.engine.helpers.decode.decode_jobs import (
    Answer,
    Decoded,
    DecodedPart,
    DecodeJob,
    DecodeRefused,
    DecodingStarted,
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
LARGE: Final = 1 << 20  # bytes of a job

_TOO_LONG: Final = "decoding it takes too long"
_TOO_LONG_CODE: Final = -signal.SIGXCPU if hasattr(signal, "SIGXCPU") else None


class Decoders:
    """Decodes files."""

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

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return self._pool.pids

    async def decode(self, job: DecodeJob) -> Decoded:
        """Returns the pixels, samples or pages of a file.

        Raises EngineError: invalid_request_error if the file can't be decoded within the limits, or
        crashes the process; server_error if no process can be started; unavailable_error after
        `stop`. Cancelling ends the work.
        """
        data = frame(job)
        if len(data) > LARGE:
            await asyncio.sleep(0)  # writing copies the data: let other tasks run first
        try:
            answer = await self._pool.run(partial(self._answer, data=data), cancels=True)
        except ChildError as e:
            log.warning("decoding a file crashed its process with code %d", e.code)
            raise invalid_request("it makes its decoder crash") from e
        if isinstance(answer, DecodeRefused):
            raise invalid_request(answer.reason)
        return answer

    async def stop(self) -> None:
        """Ends all processes; open jobs fail."""
        await self._pool.stop()

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
    return Decoded(found.getvalue(), begun.width, begun.height)
