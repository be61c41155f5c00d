"""One engine process, seen from the server: its pipes, its signs of life, and its end."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import msgspec

from engine.client import EngineClient
from engine.protocol import FrameError, Frames, ModelInfo, Step, ToEngine, ToServer, frame

log = logging.getLogger("engine.process")

HEARTBEAT_TIMEOUT = 30.0  # s without any output: the process is stuck
GRACE = 1.0  # s from the end of its output to the end of the process
END_TIMEOUT = 6.0  # s for the last step, then the process is killed
READ_SIZE = 1 << 18  # bytes
WAIT_POLICY = {"GOMP_SPINCOUNT": "20000"}
"""llama.cpp's OpenMP threads spin while they wait for each other. By default they do so for
milliseconds, which starves the server process (and themselves) on a busy machine; without
spinning a step of a small model takes twice as long. This is some tens of microseconds."""


class EngineProcess:
    """A process of `engine.worker`, which has been started and must be seen to its end."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        sink: asyncio.StreamWriter,
        source: asyncio.StreamReader,
    ) -> None:
        self.client: EngineClient | None = None  # once it is ready
        self._process = process
        self._sink = sink
        self._source = source
        self._ending = False

    @classmethod
    async def start(cls) -> "EngineProcess":
        """Raises OSError if the system has no room for another process."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "engine.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**WAIT_POLICY, **os.environ},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(process, process.stdin, process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """For messages whose answer nobody waits for."""
        self._sink.write(frame(message))

    def open(self, info: ModelInfo) -> EngineClient:
        """It is ready: the way to send it requests."""
        self.client = EngineClient(self._sink, info)
        return self.client

    async def listen(self, take: Callable[[ToServer], None]) -> None:
        """Hand on what the process says, until it is dead, stuck or mad: answers to the client,
        everything else to `take`."""
        frames, loop = Frames(), asyncio.get_running_loop()
        renewed = loop.time()
        try:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT) as watchdog:
                while data := await self._source.read(READ_SIZE):
                    # Not for every message: a new timer takes longer than a message.
                    if (now := loop.time()) - renewed > HEARTBEAT_TIMEOUT / 16:
                        renewed = now
                        watchdog.reschedule(now + HEARTBEAT_TIMEOUT)
                    for message in frames.feed(data):
                        if isinstance(message, Step) and self.client is not None:
                            self.client.dispatch(message)  # nearly always
                        else:
                            take(message)
        except TimeoutError:
            log.error("the engine process gives no sign of life and is replaced")
        except (msgspec.MsgspecError, FrameError) as error:
            log.error("the engine process sends nonsense and is replaced: %s", error)
        except ConnectionError:
            pass

    def kill(self) -> None:
        """For one that has nothing to lose, or that does not listen any more."""
        self._ending = True
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Let it finish its step and clean up; kill it if it takes more than END_TIMEOUT."""
        self._ending = True
        self._sink.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_TIMEOUT)
        except TimeoutError:
            log.warning("the engine process did not end by itself and is killed")
            self.kill()
            await self._process.wait()

    async def code(self) -> int:
        """The exit status, for one that is not listened to any more. Kills it if need be."""
        if not self._ending:
            try:
                # Its pipe closes a moment before it is gone. Killing it in that moment would
                # take its exit status away from asyncio.
                await asyncio.wait_for(self._process.wait(), GRACE)
            except TimeoutError:
                self.kill()  # stuck, or it closed its pipe in an odd way
        return await self._process.wait()


def describe_exit(code: int) -> str:
    """What a process did that ended with the exit status `code`; negative: a signal's number."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
