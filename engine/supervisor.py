"""Starts an engine process, watches it, and replaces it when it dies."""

import asyncio
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Literal

import msgspec

from engine.client import EngineClient
from engine.errors import ErrorInfo, unavailable
from engine.options import Options
from engine.protocol import (
    FrameError,
    Frames,
    Heartbeat,
    Load,
    LoadFailed,
    ModelInfo,
    Progress,
    Ready,
    SetAdapters,
    Step,
    ToServer,
    frame,
)

log = logging.getLogger("engine.supervisor")

State = Literal["loading", "ready", "restarting", "failed", "stopped"]

HEARTBEAT_TIMEOUT = 30.0  # s without any output: the process is stuck
GRACE = 1.0  # s from the end of its output to the end of the process
STOP_TIMEOUT = 6.0  # s for the last step, then the process is killed
RESTART_WAIT = 120.0  # s that a request waits for a restarted engine
BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # s before the n-th restart in a row
READ_SIZE = 1 << 18  # bytes
STABLE_SECONDS = 60.0  # after this time in service, the count of restarts begins anew
WAIT_POLICY = {"GOMP_SPINCOUNT": "20000"}
"""llama.cpp's OpenMP threads spin while they wait for each other. By default they do so for
milliseconds, which starves the server process (and themselves) on a busy machine; without
spinning a step of a small model takes twice as long. This is some tens of microseconds."""


class Supervisor:
    """Owns the engine process of one model.

    States: `loading` (the first time), `ready`, `restarting` (after a crash), `failed` (it
    can't be loaded; tried again, with back-off, if it had been ready once), `stopped`.
    """

    def __init__(self, options: Options) -> None:
        self.state: State = "loading"
        self.progress = 0.0
        self.failure = ""
        self.info: ModelInfo | None = None
        self.adapter_scales: list[tuple[int, float]] | None = None  # those set by a client
        self._options = options
        self._client: EngineClient | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready_at: float | None = None  # of the present process
        self._changed = asyncio.Condition()

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def n_running(self) -> int:
        """Generations that are waiting or running."""
        return self._client.n_running if self._client else 0

    async def start(self) -> None:
        """Start the engine process; returns before it is ready."""
        self._task = asyncio.create_task(self._run(), name="engine supervisor")

    async def loaded(self) -> None:
        """Wait for the end of the first loading, good or bad."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state != "loading")

    async def engine(self) -> EngineClient:
        """The ready engine. Waits while it restarts; raises `EngineError` (unavailable) while
        it loads for the first time, or when it can't be loaded."""
        if self.state == "restarting":
            try:
                async with asyncio.timeout(RESTART_WAIT), self._changed:
                    await self._changed.wait_for(lambda: self.state != "restarting")
            except TimeoutError:
                raise unavailable("the engine is restarting") from None
        if self.state == "ready" and self._client is not None:
            return self._client
        if self.state == "loading":
            raise unavailable("Loading model")
        if self.state == "stopped":
            raise unavailable("the server is shutting down")
        raise unavailable(f"the model could not be loaded: {self.failure}")

    async def stop(self) -> None:
        """End the engine process; open requests end with an error."""
        await self._set_state("stopped")
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
            except TimeoutError:
                log.warning("the engine process did not end by itself and is killed")
                process.kill()
        if self._task is not None:
            # Not cancelled: a process that is just being started must be seen and ended.
            await self._task

    # ---- the life of the process -----------------------------------------------------------

    def _stopped(self) -> bool:
        return self.state == "stopped"

    async def _set_state(self, state: State) -> None:
        async with self._changed:
            if self.state != "stopped":
                self.state = state
            self._changed.notify_all()

    async def _run(self) -> None:
        restarts = 0
        while not self._stopped():
            ready_at = await self._serve_once()
            if self.info is None:
                return  # a model that never loaded is not tried again
            if ready_at is not None and time.monotonic() - ready_at > STABLE_SECONDS:
                restarts = 0
            await self._pause(BACKOFF[min(restarts, len(BACKOFF) - 1)])
            restarts += 1

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not over the end of the server."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(self._stopped)

    async def _serve_once(self) -> float | None:
        """Run one engine process to its end; when it became ready."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "engine.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**WAIT_POLICY, **os.environ},
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        if self.state == "stopped":  # while it was being started
            process.stdin.close()
        else:
            process.stdin.write(frame(Load(self._options)))
        self._ready_at = None
        try:
            await self._listen(process.stdout, process.stdin)
        finally:
            await self._bury(process, self._ready_at is not None)
        return self._ready_at

    async def _listen(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Take the messages of the process, until it is dead or stuck."""
        frames, loop = Frames(), asyncio.get_running_loop()
        renewed = loop.time()
        try:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT) as watchdog:
                while data := await source.read(READ_SIZE):
                    # Not for every message: a new timer takes longer than a message.
                    if (now := loop.time()) - renewed > HEARTBEAT_TIMEOUT / 16:
                        renewed = now
                        watchdog.reschedule(now + HEARTBEAT_TIMEOUT)
                    for message in frames.feed(data):
                        if isinstance(message, Step) and self._client is not None:
                            self._client.dispatch(message)  # nearly always
                        else:
                            await self._take(message, sink)
        except TimeoutError:
            log.error("the engine process gives no sign of life and is replaced")
        except (msgspec.MsgspecError, FrameError) as error:
            log.error("the engine process sends nonsense and is replaced: %s", error)
        except ConnectionError:
            pass

    async def _take(self, message: ToServer, sink: asyncio.StreamWriter) -> None:
        match message:
            case Heartbeat():
                pass
            case Progress(fraction=fraction):
                self.progress = fraction
            case Ready(info=info):
                self._ready_at = time.monotonic()
                self.info, self.progress, self.failure = info, 1.0, ""
                self._client = EngineClient(sink, info)
                if self.adapter_scales is not None:  # nobody waits for the answer
                    sink.write(frame(SetAdapters(0, self.adapter_scales)))
                await self._set_state("ready")
            case LoadFailed(message=text):
                self.failure = text
            case _ if self._client is not None:
                self._client.dispatch(message)

    async def _bury(self, process: asyncio.subprocess.Process, was_ready: bool) -> None:
        if not self._stopped():
            try:
                # Its pipe closes a moment before it is gone. Killing it in that moment would
                # take its exit status away from asyncio.
                await asyncio.wait_for(process.wait(), GRACE)
            except TimeoutError:
                process.kill()  # stuck, or it closed its pipe in an odd way
        how = _ending(await process.wait())
        self._process = None
        message = f"the engine process {how}"
        if self.state == "stopped":
            message = "the server is shutting down"
        elif was_ready:
            log.error("%s; a new one is started", message)
        if self._client is not None:
            self._client.close(ErrorInfo("server_error", message))
            self._client = None
        if not was_ready and not self.failure:
            self.failure = f"{message} while it loaded the model"
        await self._set_state("restarting" if was_ready else "failed")


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
