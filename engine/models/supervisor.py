"""Controls the engine process of one model: starts it, replaces it, suspends it, ends it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from specllama.engine import system
from specllama.engine.catalog.entry import wants_fetch
from specllama.engine.errors import EngineError, ErrorInfo, unavailable
from specllama.engine.helpers.download.downloader import FetchError, Transfer, fetch
from specllama.engine.models.client import EngineClient
from specllama.engine.models.engine_process import (
    EngineProcess,
    Examine,
    ProcessSnapshot,
    StartProcess,
    WaitingRequests,
)
from specllama.engine.models.lifecycle import (
    LOADING,
    RETURNING,
    SERVING,
    Lifecycle,
    ProcessLife,
    Restarts,
    State,
)
from specllama.engine.models.memory import with_measured
from specllama.engine.options import Options
from specllama.engine.wire.commands import explain_exit
from specllama.engine.wire.devices import device_lines
from specllama.engine.wire.engine_log import EngineLog, log_for
from specllama.engine.wire.process import Changes
from specllama.engine.wire.replies import (
    AboutModel,
    LoadFailed,
    Measured,
    ModelInfo,
    NoReplicas,
    Progress,
    Ready,
)
from specllama.engine.wire.requests import SetAdapters

log = logging.getLogger("specllama.engine.models.supervisor")

RESTART_WAIT = 30.0  # s that a request waits for a restarted engine
RETRY_AFTER = 10  # s, the retry-after of the error when that time is over
RESTARTING = ErrorInfo("unavailable_error", "the engine is restarting", retry_after=RETRY_AFTER)
SHUTTING_DOWN = "the server is shutting down"

Fetch = Callable[[Options, Callable[[Transfer], None]], Awaitable[Options]]
"""`engine.helpers.download.downloader.fetch`."""


class Supervisor:
    """Owns the engine process of one model.

    `engine.models.lifecycle` defines its states. Each process is an `EngineProcess`, with the state
    that belongs to the process alone; the supervisor has the state that outlasts a process.

    Code that uses the engine holds a lease from before `engine` until the end (`acquire`,
    `release`). A lease keeps the engine awake, and `stop` waits for it. Code that must not wake a
    model uses `awake_engine` without a lease.
    """

    def __init__(
        self,
        options: Options,
        *,
        fetch: Fetch = fetch,
        start_process: StartProcess = EngineProcess.start,
        examine: Examine | None = None,
        restarts: Restarts | None = None,
        log_level: int = logging.WARNING,
    ) -> None:
        """`examine` is called for each model that a process has loaded, before it accepts requests;
        `log_level` is the threshold of the engine process's log."""
        self.options = options  # with the paths of files after these have been downloaded
        self.measured: Measured | None = None  # its dry run, if there was one
        self.model = ""  # its name in the log, if there are several models
        self.adapter_scales: list[tuple[int, float]] | None = None  # the scales set by a client
        self.on_transition: Callable[[State], None] = lambda before: None
        """Called at every transition, with the state before."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called at every change of `progress` and `transfer`."""

        self.progress = 0.0  # progress of downloading or loading, 0..1
        self.transfer: Transfer | None = None  # of the last download
        self.info: ModelInfo | None = None  # set by the first loading, and kept
        self.failure = ""  # why it is "failed"
        self.exit_code: int | None = None  # of the last process; negative: minus a signal

        self._fetch = fetch
        self._start_process = start_process
        self._examine = examine
        self._log_level = log_level
        self._restarts = restarts or Restarts()
        self._lifecycle = Lifecycle("downloading" if wants_fetch(options) else "loading")
        self._changes = Changes()
        self._process: EngineProcess | None = None
        self._fetching: asyncio.Future[Options] | None = None
        self._task: asyncio.Task[None] | None = None
        self._examining: asyncio.Task[None] | None = None  # the loaded model, once for each process
        self._waiting = WaitingRequests(RESTART_WAIT)
        self._snapshot: ProcessSnapshot | None = None  # the last one before it fell asleep
        self._n_leases = 0
        self._used_at = 0.0  # time of the last use
        self._needed = True  # False if the engine may sleep, or is only to be downloaded
        self._stop_reason = ""  # set by `stop`: the error of requests from then on

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def pid(self) -> int | None:
        """Process id of the engine process, if it exists."""
        return self._process.pid if self._process else None

    @property
    def n_leases(self) -> int:
        """The number of active leases."""
        return self._n_leases

    def start(self, *, load: bool = True) -> None:
        """Starts the work. Without `load`, a missing model is only downloaded, and loaded after
        `wake`."""
        if not self._stopped():
            self._needed = load
            self._task = asyncio.create_task(self._run(), name="engine supervisor")

    async def fetch_begun(self) -> None:
        """Waits until the download makes progress, or ends."""
        await self._changes.until(lambda: self.transfer is not None or self.state != "downloading")

    async def fetched(self) -> None:
        """Waits for the end of the download, successful or not."""
        await self._changes.until(lambda: self.state != "downloading")

    async def loaded(self) -> None:
        """Waits for the end of the first loading, successful or not."""
        first = ("downloading", "downloaded", "loading")
        await self._changes.until(lambda: self.state not in first)

    async def engine(self) -> EngineClient:
        """Returns the ready engine. Wakes it if it sleeps, and waits while it wakes or restarts.
        Raises `EngineError` (unavailable) while it loads for the first time, when it can't be
        loaded, and without a lease when it is being stopped."""
        if self._stop_reason and not self._n_leases:
            raise unavailable(self._stop_reason)
        self._used_at = system.now()
        while (client := self.awake_engine()) is None:
            self.wake()
            if self.state not in RETURNING:
                raise unavailable(self._absence())
            await self._until_returned()
        return client

    def awake_engine(self) -> EngineClient | None:
        """Returns the engine if it is ready; neither wakes it nor keeps it awake."""
        return self._process.client if self._process and self.state in SERVING else None

    def sleeping_snapshot(self) -> ProcessSnapshot | None:
        """Returns the last snapshot of a sleeping engine; None if it isn't asleep."""
        return self._snapshot if self.state in ("dozing", "sleeping") else None

    def wake(self) -> None:
        """Wakes the sleeping engine, or loads the downloaded model."""
        self._needed = True
        self._changes.announce()

    def acquire(self) -> None:
        """Begins a lease. Raises `EngineError` (unavailable) if the engine is being stopped."""
        if self._stop_reason:
            raise unavailable(self._stop_reason)
        self._n_leases += 1

    def release(self) -> None:
        """Ends the lease that began with `acquire`."""
        self._n_leases -= 1
        self._used_at = system.now()
        self._changes.announce()

    async def stop(self, timeout: float = 0.0, reason: str = SHUTTING_DOWN) -> None:
        """Ends the engine process, or the download or start before it.

        There are no new leases from now on. Existing ones get `timeout` seconds, then their
        requests fail with the error `reason`. A second call can shorten the time.
        """
        self._stop_reason = self._stop_reason or reason
        if timeout > 0 and self.state in SERVING:
            await self._drain(timeout)
        self._enter("stopped")
        self._waiting.give_up(ErrorInfo("unavailable_error", self._stop_reason))
        if self._fetching is not None:
            self._fetching.cancel()
        if (process := self._process) is not None:
            if process.client is None:
                process.kill()  # while loading, it doesn't read messages
            else:  # its requests need not wait for the last step
                process.client.close(ErrorInfo("unavailable_error", self._stop_reason))
            await process.end()
        if self._task is not None:
            # Not cancelled: a process that is just being started has to be ended.
            await asyncio.wait({self._task})

    # ---- states ----------------------------------------------------------------------------

    def _stopped(self) -> bool:
        return self.state == "stopped"

    def _enter(self, state: State) -> None:
        """Makes a transition. No other code changes the state."""
        before = self.state
        if not self._lifecycle.enter(state):
            return
        if state in LOADING or state == "downloaded":
            self.progress = 0.0
        self._changes.announce()
        self.on_transition(before)

    def _fail(self, reason: str) -> None:
        if not self._stopped():
            self.failure = reason
            self._enter("failed")
            self._waiting.give_up(ErrorInfo("unavailable_error", self._absence()))

    def _absence(self) -> str:
        """Returns why there is no engine for which a request could wait."""
        match self.state:
            case "downloading" | "downloaded":
                return "Downloading model"
            case "failed":
                return f"the model could not be loaded: {self.failure}"
            case "stopped":
                return self._stop_reason
            case _:
                return "Loading model"

    async def _until_returned(self) -> None:
        """Waits until the engine has returned, or can't return. Raises `EngineError` if a restart
        takes longer than RESTART_WAIT."""
        limit = RESTART_WAIT if self.state == "restarting" else None
        if not await self._changes.within(limit, lambda: self.state not in RETURNING):
            raise EngineError(RESTARTING)

    async def _drain(self, timeout: float) -> None:
        """Waits for the end of all leases."""
        if self.state == "ready":
            self._enter("draining")
        await self._changes.within(timeout, lambda: not self._n_leases or self._stopped())

    # ---- from the download to the end -------------------------------------------------------

    async def _run(self) -> None:
        try:
            if self.state == "downloading":
                await self._download()
            if self.state == "downloaded":
                await self._changes.until(lambda: self._needed or self._stopped())
                self._enter("loading")
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
            self._enter("downloaded")
        finally:
            self._fetching = None

    def _on_transfer(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.progress = transfer.n_done / transfer.n_total if transfer.n_total else 0.0
        self._changes.announce()
        self.on_progress()

    async def _keep_serving(self) -> None:
        """Runs one process after another."""
        while not self._stopped():
            wait = await self._serve_once()
            if self.state == "dozing":
                await self._sleep()
            elif self.state == "draining":
                self._enter("stopped")  # it crashed during the time to finish
            elif wait is None:
                break
            else:
                await self._changes.within(wait, self._stopped)

    async def _sleep(self) -> None:
        """Waits, without a process, until one is needed."""
        if not (self._needed or self._n_leases):
            self._enter("sleeping")
            await self._changes.until(lambda: self._needed or self._stopped())
        self._enter("waking")

    # ---- one process -----------------------------------------------------------------------

    async def _serve_once(self) -> float | None:
        """Runs one engine process to its end. Returns the delay before the next one; None if there
        is none."""
        engine_log = EngineLog(self.model, everything=self._log_level <= logging.DEBUG)
        try:
            process = self._process = await self._start_process(
                with_measured(self.options.engine, self.measured), engine_log, self._log_level
            )
        except OSError as error:
            self._fail(f"the engine process could not be started: {error}")
            return self._restarts.after(ProcessLife())
        if self._stopped():  # stopped during the start
            process.kill()
        idle_watch = asyncio.create_task(self._watch_idle(process), name="idle watch")
        try:
            await process.listen(partial(self._take, process))
        finally:
            code = await process.code()
            if self._examining is not None:
                self._examining.cancel()
            if self.state != "dozing":  # else the watch itself ends the process
                idle_watch.cancel()
            wait = self._conclude(process, code)
        return wait

    def _take(self, process: EngineProcess, message: AboutModel) -> None:
        match message:
            case Progress(fraction=fraction):
                self.progress = fraction
                self.on_progress()
            case Ready(info=info):
                self._begin_to_open(process, info)
            case LoadFailed(message=text):
                process.refusal = text
            case NoReplicas():
                if self.state == "ready":  # before, it waits for other replicas
                    if not (self._n_leases or process.n_running):
                        self._needed = False
                        self._enter("dozing")
                    process.kill()  # requests wait for the next one
            case _ if process.client is not None:
                process.client.dispatch(message)
                self.info = process.client.info

    def _begin_to_open(self, process: EngineProcess, info: ModelInfo) -> None:
        """Opens the process after its model, which it has loaded, has been examined."""
        if self._examine is None:
            self._open(process, info)
        else:
            opening = self._open_examined(process, info, self._examine)
            self._examining = asyncio.create_task(opening, name="examine a model")

    async def _open_examined(
        self, process: EngineProcess, info: ModelInfo, examine: Examine
    ) -> None:
        """Opens the process, or ends it if its model can't be served."""
        try:
            info = await examine(self.options, info)
        except Exception as error:  # of any kind, or the model would stay "loading" for ever
            if not isinstance(error, EngineError):
                log.exception("a loaded model could not be examined")
            process.refusal = str(error)
            await process.end()
        else:
            self._open(process, info)

    def _open(self, process: EngineProcess, info: ModelInfo) -> None:
        """Makes the process available for requests."""
        self._used_at = system.now()
        for line in device_lines(info.devices):
            log_for(log, logging.INFO, self.model, line)
        client = process.open(info)
        self.info, self.progress, self.failure = client.info, 1.0, ""
        if self.adapter_scales is not None:
            process.send(SetAdapters(0, self.adapter_scales))
        self._waiting.go_on(client)
        self._enter("ready")

    @property
    def seconds_awake(self) -> float | None:
        """Seconds until the model sleeps if it isn't used from now on; None if it never sleeps."""
        seconds = float(self.options.entry.sleep_idle_seconds)
        if seconds <= 0:
            return None
        used = 0.0 if self._n_leases else system.now() - self._used_at
        return max(seconds - used, 0.0)

    async def _watch_idle(self, process: EngineProcess) -> None:
        """Ends the process after --sleep-idle-seconds without use."""
        if self.seconds_awake is None:
            return
        await self._changes.until(lambda: process.client is not None)
        used_at = -1.0
        while used_at != self._used_at or self._n_leases:  # repeats if used during the snapshot
            await self._changes.until(lambda: not self._n_leases)
            while wait := self.seconds_awake:
                await asyncio.sleep(wait)
                await self._changes.until(lambda: not self._n_leases)
                if process.n_running:  # requests without a lease don't report their end
                    self._used_at = system.now()
            used_at = self._used_at
            self._snapshot = await process.snapshot()  # an ending process sends none
        await self._doze(process)

    async def _doze(self, process: EngineProcess) -> None:
        """Ends an unused process."""
        if self._process is process and self.state == "ready":
            self._needed = False  # later requests wait for the next process
            self._enter("dozing")
            await process.end()

    def _conclude(self, process: EngineProcess, code: int) -> float | None:
        """Makes the transition after the end of a process. Returns the delay before the next one;
        None if there is none."""
        self._process = None
        # The process of a rejected model has ended regularly: then 0 is not reported as exit code.
        self.exit_code = (code or None) if process.refusal else code
        life, client = process.summary(code), process.client
        how = explain_exit(code, "" if life.ready else "while it loaded the model")
        how = f"the engine process {how}"
        error = ErrorInfo("server_error", how)
        if self.state == "dozing":
            if client is not None:
                if self._snapshot is not None:
                    client.answer_from_snapshot(self._snapshot.stats, self._snapshot.slots)
                client.close(error)
            idle = self.options.entry.sleep_idle_seconds
            why = f"it was idle for {idle} s" if idle > 0 else "its replicas have ended"
            log_for(log, logging.INFO, self.model, f"the model sleeps: {why}")
            return self._restarts.after(ProcessLife(ready=True, served=True))
        wait = self._restarts.after(life)
        if self._stopped():  # `stop` has closed the client
            return wait
        may_wake = self.state == "waking" and not process.refusal
        if self.state != "draining" and wait is not None and (life.ready or may_wake):
            log_for(log, logging.ERROR, self.model, f"{how}; a new one is started")
            if client is not None:
                self._waiting.take(client, error, RESTARTING)
            self._enter("restarting")
            return wait
        if client is not None:
            client.close(error)
        if self.state == "draining":
            log_for(log, logging.ERROR, self.model, how)
        else:
            self._fail(process.refusal or how)
        return wait
