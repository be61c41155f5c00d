"""Keeps the engine process of one model: starts it, replaces it, lets it sleep, ends it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, Protocol

from engine.catalog.download.parent import FetchError, Transfer, fetch, wants_fetch
from engine.errors import ErrorInfo, unavailable
from engine.options import Options
from engine.pool.client import EngineClient
from engine.pool.process import EngineProcess
from engine.pool.restarts import Life, Restarts
from engine.processes.changes import Changes
from engine.processes.exits import explain_exit
from engine.protocol.engine_log import EngineLog, tell
from engine.protocol.messages import (
    Heartbeat,
    LoadFailed,
    ModelInfo,
    Progress,
    Ready,
    SetAdapters,
    ToServer,
)

log = logging.getLogger("engine.pool.supervisor")

State = Literal[
    "downloading",
    "downloaded",
    "loading",
    "ready",
    "sleeping",
    "waking",
    "restarting",
    "failed",
    "stopped",
]

RESTART_WAIT = 120.0  # s that a request waits for a restarted engine
SHUTTING_DOWN = "the server is shutting down"


class Fetch(Protocol):
    """`engine.catalog.download.parent.fetch`."""

    def __call__(
        self, options: Options, on_progress: Callable[[Transfer], None], /
    ) -> Awaitable[Options]: ...


class Supervisor:
    """Owns the engine process of one model.

    States: `downloading` its files; `downloaded`, and nobody has asked for more; `loading` (the
    first time); `ready`; `sleeping` (no process, and no memory, until somebody calls); `waking`
    (loading after that); `restarting` (after a crash); `failed` (it can't be loaded; tried
    again, as `engine.pool.restarts` says); `stopped`.

    Who works with the engine holds a lease from before `engine` until the end (`acquire`,
    `release`): it keeps the engine awake, and `stop` waits for it. Those that must not wake a
    model use `awake_engine`, and hold none.
    """

    def __init__(
        self,
        options: Options,
        *,
        fetch: Fetch = fetch,
        restarts: Restarts | None = None,
        log_level: int = logging.WARNING,
    ) -> None:
        """`log_level` is the threshold of what the engine process logs."""
        self.state: State = "downloading" if wants_fetch(options) else "loading"
        self.progress = 0.0  # of downloading or loading, 0..1
        self.transfer: Transfer | None = None  # of the last download
        self.failure = ""  # why it is "failed"
        self.exit_code: int | None = None  # of the last process; negative: minus a signal
        self.info: ModelInfo | None = None  # None until first ready; kept from then on
        self.adapter_scales: list[tuple[int, float]] | None = None  # those set by a client
        self.on_change: Callable[[], None] = lambda: None
        """Called at every change of `state`, `progress` and `transfer`."""
        self.model = ""  # its name in the log, where there are many
        self.options = options  # with the paths of files once these have been downloaded
        self._fetch = fetch
        self._log_level = log_level
        self._restarts = restarts or Restarts()
        self._fetching: asyncio.Future[Options] | None = None
        self._client: EngineClient | None = None  # None as well while it falls asleep
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle_watch: asyncio.Task[None] | None = None
        self._n_leases = 0
        self._used_at = 0.0  # when the engine was last asked for or given back
        self._wanted = True  # not while it may sleep, or need not be loaded
        self._dozing = False  # the process is being ended because nobody needs it
        self._leaving = ""  # why it is being stopped
        self._changes = Changes()

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def n_running(self) -> int:
        """Requests that are waiting or running in the engine."""
        return self._client.n_running if self._client else 0

    @property
    def n_leases(self) -> int:
        """How many are at work with the engine, or about to be."""
        return self._n_leases

    async def start(self, *, load: bool = True) -> None:
        """Start to work; returns before it is ready. Without `load`, a model that is not here
        is downloaded, and loaded when `wake` is called."""
        if not self._stopped():
            self._wanted = load
            self._task = asyncio.create_task(self._run(), name="engine supervisor")

    async def fetched(self) -> None:
        """Wait for the end of the download, good or bad."""
        await self._changes.until(lambda: self.state != "downloading")

    async def loaded(self) -> None:
        """Wait for the end of the first loading, good or bad."""
        first = ("downloading", "downloaded", "loading")
        await self._changes.until(lambda: self.state not in first)

    async def engine(self) -> EngineClient:
        """The ready engine. Wakes it if it sleeps, and waits while it wakes or restarts; raises
        `EngineError` (unavailable) while it loads for the first time, when it can't be loaded,
        and to those without a lease when it is being stopped."""
        if self._leaving and not self._n_leases:
            raise unavailable(self._leaving)
        self._used_at = time.monotonic()
        if self._client is None:
            await self._until_ready()
        while (client := self._client) is None:
            match self.state:
                case "downloading" | "downloaded":
                    raise unavailable("Downloading model")
                case "loading":
                    raise unavailable("Loading model")
                case "stopped":
                    raise unavailable(self._leaving)
                case "failed":
                    raise unavailable(f"the model could not be loaded: {self.failure}")
                case _:
                    await self._until_ready()
        return client

    def awake_engine(self) -> EngineClient | None:
        """The engine if it is ready: for those who neither wake it nor keep it awake."""
        return self._client

    def wake(self) -> None:
        """The engine will be needed: end its sleep, or load what has been downloaded."""
        self._wanted = True
        self._changes.announce()

    def acquire(self) -> None:
        """Begin to work with the engine. Raises `EngineError` (unavailable) if it is being
        stopped."""
        if self._leaving:
            raise unavailable(self._leaving)
        self._n_leases += 1

    def release(self) -> None:
        """The end of what began with `acquire`."""
        self._n_leases -= 1
        self._used_at = time.monotonic()
        self._changes.announce()

    async def stop(self, timeout: float = 0.0, reason: str = SHUTTING_DOWN) -> None:
        """End the engine process, or what comes before there is one.

        There are no new leases from now on; those that exist get `timeout` seconds, then their
        requests end with the error `reason`. A second call can shorten the time.
        """
        self._leaving = self._leaving or reason
        if timeout > 0 and self._client is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changes.until(lambda: not self._n_leases or self._stopped())
        self._set_state("stopped")
        if self._client is not None:  # its requests need not wait for the last step
            self._client.close(ErrorInfo("unavailable_error", self._leaving))
        if self._fetching is not None:
            self._fetching.cancel()
        if self._process is not None:
            if self._process.client is None:
                self._process.kill()  # in the middle of loading it would not listen
            await self._process.end()
        if self._task is not None:
            # Not cancelled: a process that is just being started must be seen and ended.
            await asyncio.wait({self._task})

    # ---- states ----------------------------------------------------------------------------

    def _stopped(self) -> bool:
        return self.state == "stopped"

    def _set_state(self, state: State) -> None:
        if self.state != "stopped":
            self.state = state
            self._changes.announce()
            self.on_change()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._set_state("failed")

    async def _until_ready(self) -> None:
        """Wait until there is an engine, or until it is certain that there will be none soon."""
        hopeless = ("downloading", "downloaded", "loading", "failed", "stopped")
        self.wake()
        limit = RESTART_WAIT if self.state == "restarting" else None
        try:
            async with asyncio.timeout(limit):
                await self._changes.until(
                    lambda: self._client is not None or self.state in hopeless
                )
        except TimeoutError:
            raise unavailable("the engine is restarting") from None

    # ---- the life of the process -----------------------------------------------------------

    async def _run(self) -> None:
        try:
            if wants_fetch(self.options):
                await self._download()
            if self.state == "downloaded":
                await self._changes.until(lambda: self._wanted or self._stopped())
                self._set_state("loading")
            if self.state == "loading":
                await self._keep_serving()
        except Exception as error:
            log.exception("the supervisor of an engine failed")
            self._fail(f"{type(error).__name__}: {error}")

    async def _download(self) -> None:
        self._fetching = asyncio.ensure_future(self._fetch(self.options, self._on_transfer))
        try:
            self.options = await self._fetching
        except FetchError as error:
            self._fail(str(error))
        except asyncio.CancelledError:
            if not self._stopped():
                raise
        else:
            self.progress = 0.0
            self._set_state("downloaded")
        finally:
            self._fetching = None

    def _on_transfer(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.progress = transfer.n_done / transfer.n_total if transfer.n_total else 0.0
        self.on_change()

    async def _keep_serving(self) -> None:
        while not self._leaving:
            wait = await self._serve_once()
            if self._dozing:
                await self._sleep()
            elif wait is None:
                break
            else:
                await self._pause(wait)
        if self._leaving:
            self._set_state("stopped")  # it died while it was given time to finish

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not over the end of the server."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changes.until(self._stopped)

    async def _sleep(self) -> None:
        """There is no process. Wait until there has to be one."""
        self._dozing = False
        if not (self._wanted or self._n_leases):
            self._set_state("sleeping")
            await self._changes.until(lambda: self._wanted or self._stopped())
        self._wanted, self.progress = True, 0.0
        self._set_state("waking")

    async def _serve_once(self) -> float | None:
        """Run one engine process to its end; how long to wait for the next one, if there shall
        be one."""
        try:
            process = self._process = await EngineProcess.start(
                self.options.engine, self._engine_log(), self._log_level
            )
        except OSError as error:
            self._fail(f"the engine process could not be started: {error}")
            return self._restarts.after(Life())
        if self._stopped():  # while it was being started
            process.kill()
        try:
            await process.listen(self._take)
        finally:
            wait = await self._bury(process)
        return wait

    def _engine_log(self) -> EngineLog:
        return EngineLog(self.model, everything=self._log_level <= logging.DEBUG)

    def _take(self, message: ToServer) -> None:
        process = self._process
        assert process is not None
        match message:
            case Heartbeat():
                pass
            case Progress(fraction=fraction):
                self.progress = fraction
                self.on_change()
            case Ready(info=info):
                self._used_at = time.monotonic()
                self.info, self.progress, self.failure = info, 1.0, ""
                self._client = process.open(info)
                if self.adapter_scales is not None:
                    process.send(SetAdapters(0, self.adapter_scales))
                if self.options.entry.sleep_idle_seconds > 0:
                    self._idle_watch = asyncio.create_task(self._watch_idle(process))
                self._set_state("ready")
            case LoadFailed(message=text):
                process.refusal = text
            case _ if process.client is not None:
                process.client.dispatch(message)

    async def _watch_idle(self, process: EngineProcess) -> None:
        """End the process once nobody has needed it for --sleep-idle-seconds."""
        wait = float(self.options.entry.sleep_idle_seconds)
        while wait > 0:
            await asyncio.sleep(wait)
            await self._changes.until(lambda: not self._n_leases)
            if self.n_running:  # without a lease: nobody knows when it ends
                self._used_at = time.monotonic()
            wait = self._used_at + self.options.entry.sleep_idle_seconds - time.monotonic()
        if self._process is process and not self._leaving:
            # Whoever asks for the engine from here on waits for the next one.
            self._client, self._wanted, self._dozing = None, False, True
            await process.end()

    async def _bury(self, process: EngineProcess) -> float | None:
        """See a process off; how long to wait for the next one, if there shall be one."""
        code = await process.code()
        if self._idle_watch is not None and not self._dozing:
            self._idle_watch.cancel()
        self._process, self._client, self._idle_watch = None, None, None
        self.exit_code = code
        life = process.life(code)
        how = explain_exit(code, "" if life.ready else "while it loaded the model")
        how = f"the engine process {how}"
        if process.client is not None:
            process.client.close(self._farewell(how))
        if self._dozing:
            idle = self.options.entry.sleep_idle_seconds
            tell(log, logging.INFO, self.model, f"the model sleeps: it was idle for {idle} s")
            return self._restarts.after(Life(ready=True, served=True))
        wait = self._restarts.after(life)
        woken = self.state == "waking" and not process.refusal
        if wait is not None and (life.ready or woken):
            if not self._stopped():
                tell(log, logging.ERROR, self.model, f"{how}; a new one is started")
            self._set_state("restarting")
        elif not self._stopped():
            self._fail(process.refusal or how)
        return wait

    def _farewell(self, how: str) -> ErrorInfo:
        """The error that open requests end with."""
        if self._stopped():
            return ErrorInfo("unavailable_error", self._leaving)
        return ErrorInfo("server_error", how)
