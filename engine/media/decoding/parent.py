"""The asyncio side of the processes that decode (`engine.media.decoding.child`).

There are at most `PROCESSES` of them, each started when it is needed first. Jobs take turns in the
order they come. A process that a job is too much for is killed, and so is one whose job nobody
waits for any more; the next job that needs one starts a new one. A job with which a used process
ends is done again by a new one: the fault may be an earlier job's, or somebody killed the process.
"""

import asyncio
import io
import logging
import signal
from typing import Final

from specllama.engine.errors import invalid_request, server_error, unavailable
from specllama.engine.media.decoding.messages import (
    Answer,
    Begun,
    Decoded,
    Job,
    Part,
    Refused,
    answer_decoder,
)
from specllama.engine.wire.commands import bare_environment, decode_command
from specllama.engine.wire.framing import FrameError, Started, frame
from specllama.engine.wire.process import GRACE, Child, ChildError

log = logging.getLogger("specllama.engine.media")

PROCESSES: Final = 2
MEMORY_LIMIT: Final = 2 << 30  # bytes of address space, the interpreter included
PROCESSOR_LIMIT: Final = 20.0  # s of one job
TIME_LIMIT: Final = 120.0  # s of one job, on a machine that has much else to do
STOP_TIMEOUT: Final = 1.0  # s until a process that should end is killed
LARGE: Final = 1 << 20  # bytes of a job

_TOO_LONG: Final = "decoding it takes too long"
_TOO_LONG_CODE: Final = -signal.SIGXCPU if hasattr(signal, "SIGXCPU") else None

Process = Child[Started | Answer | Part]


class Decoders:
    """Decodes files that are not trusted."""

    def __init__(
        self,
        *,
        memory_limit: int = MEMORY_LIMIT,
        processor_limit: float = PROCESSOR_LIMIT,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self._command = decode_command(memory_limit, processor_limit, time_limit)
        self._time_limit = time_limit
        self._turns = asyncio.Semaphore(PROCESSES)
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._burials: set[asyncio.Task[int]] = set()
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The ids of the present processes."""
        return [process.pid for process in (*self._idle, *self._busy)]

    async def decode(self, job: Job) -> Decoded:
        """The pixels, samples or pages of a file.

        Raises EngineError: invalid_request_error if the file can't be decoded within the limits,
        whatever it does to the process; server_error if there is no starting one; unavailable_error
        after `stop`. Cancelling ends the work.
        """
        data = frame(job)
        if len(data) > LARGE:
            await asyncio.sleep(0)  # writing it copies it: others have their turn first
        async with self._turns:
            answer = await self._answer(data)
        if isinstance(answer, Refused):
            raise invalid_request(answer.reason)
        return answer

    async def stop(self) -> None:
        """End all processes; open jobs end with an error."""
        self._stopped = True
        for process in self._busy:
            process.kill()
        for process in self._idle:
            await process.end(STOP_TIMEOUT)
            await process.bury()
        self._idle.clear()
        await asyncio.gather(*self._burials)

    async def _answer(self, data: bytes) -> Decoded | Refused:
        self._idle = [process for process in self._idle if process.is_alive]
        if self._idle:
            try:
                return await self._let_do(self._idle.pop(), data)
            except ChildError as e:
                if e.code == _TOO_LONG_CODE:
                    raise invalid_request(_TOO_LONG) from e
        try:
            return await self._let_do(await self._start(), data)
        except ChildError as e:
            if e.code == _TOO_LONG_CODE:
                raise invalid_request(_TOO_LONG) from e
            if self._stopped:
                raise unavailable("the server is shutting down") from e
            log.warning("a medium ended the process that decoded it with code %d", e.code)
            raise invalid_request("it makes its decoder crash") from e

    async def _let_do(self, process: Process, data: bytes) -> Decoded | Refused:
        """Raises ChildError if the process ends."""
        self._busy.add(process)
        try:
            async with asyncio.timeout(self._time_limit):
                answer = await _ask(process, data)
        except TimeoutError:
            self._end(process)
            raise invalid_request(_TOO_LONG) from None
        except asyncio.CancelledError:
            self._end(process)
            raise
        finally:
            self._busy.discard(process)
        if isinstance(answer, Refused) and answer.exhausted:
            self._end(process)
        else:
            self._idle.append(process)
        return answer

    def _end(self, process: Process) -> None:
        process.kill()
        task = asyncio.create_task(process.bury())
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _start(self) -> Process:
        if self._stopped:
            raise unavailable("the server is shutting down")
        try:
            process: Process = await Child.start_for_jobs(
                self._command, answer_decoder, env=bare_environment()
            )
        except (TimeoutError, ChildError) as e:
            raise server_error("a process that decodes media could not be started") from e
        except OSError as e:
            raise server_error(f"a process that decodes media could not be started: {e}") from e
        if self._stopped:
            self._end(process)
            raise unavailable("the server is shutting down")
        return process


async def _ask(process: Process, data: bytes) -> Decoded | Refused:
    """The answer, put together. Raises ChildError if the process ends or says nonsense."""
    process.stdin.write(data)
    try:
        begun = await process.receive()
        if isinstance(begun, Refused):
            return begun
        if not isinstance(begun, Begun) or begun.n_bytes > MEMORY_LIMIT:
            raise FrameError("something else than an answer")
        found = io.BytesIO()  # gives what was written to it without a copy
        while found.tell() < begun.n_bytes:
            part = await process.receive()
            if not isinstance(part, Part) or not part.data:
                raise FrameError("something else than a part")
            found.write(part.data)
    except (EOFError, FrameError) as error:
        raise ChildError(await process.bury(GRACE)) from error
    return Decoded(found.getvalue(), begun.width, begun.height)
