"""Keeps a server running as systemd does: when the server ends, ends its remaining processes, and
restarts it after a while."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from contract_tests.own.servers import ROOT, environment

BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)  # s before a restart, by the number of short runs in a row
STABLE = 5.0  # s: a longer run resets the backoff
LINGER = 10.0  # s that processes may outlive their server


@dataclass
class Death:
    at: float
    code: int
    back: float | None = None
    """The time when the next server answered."""


@dataclass
class Keeper:
    """A server that is restarted. `deaths` are the ends of the server. `orphans` describes
    processes that outlived their server; processes in `stopped` can't end, and are no fault."""

    command: Sequence[str]
    port: int
    log: Path
    variables: Mapping[str, str]
    deaths: list[Death] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)
    process: asyncio.subprocess.Process | None = None
    _task: asyncio.Task[None] | None = None
    _ending: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Ends the server as systemd stops a service."""
        self._ending = True
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.terminate()
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=LINGER * 3)
            if not done and self.process is not None:
                self.process.kill()
                await asyncio.wait({self._task})

    async def ready(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while not await self.healthy():
            assert time.monotonic() < deadline, f"the server isn't ready: {self.tail()}"
            assert self._task is not None
            assert not self._task.done(), self._task.exception()
            await asyncio.sleep(0.1)

    async def healthy(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=LINGER) as http:
                return (await http.get(f"{self.url}/health")).status_code == 200
        return False

    def tail(self, n: int = 3000) -> str:
        return self.log.read_bytes()[-n:].decode("utf-8", "replace")

    async def _keep(self) -> None:
        failures = 0
        while not self._ending:
            begun = time.monotonic()
            with self.log.open("ab") as sink:
                self.process = await asyncio.create_subprocess_exec(
                    *self.command, "--port", str(self.port), env=environment(**self.variables),
                    cwd=ROOT, stdout=sink, stderr=sink, stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            watch = asyncio.create_task(self._note_return())
            code = await self.process.wait()
            watch.cancel()
            self.deaths.append(Death(time.monotonic(), code))
            await self._end_session(self.process.pid)
            failures = 0 if time.monotonic() - begun > STABLE else failures + 1
            if not self._ending:
                await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])

    async def _note_return(self) -> None:
        if self.deaths:
            while not await self.healthy():
                await asyncio.sleep(0.05)
            self.deaths[-1].back = time.monotonic()

    async def _end_session(self, session: int) -> None:
        """Gives the remaining processes of an ended server some time, and then ends them."""
        deadline = time.monotonic() + LINGER
        while left := [each for each in members(session) if each.pid not in self.stopped]:
            if time.monotonic() > deadline:
                self.orphans += [f"{each.pid} {_command_line(each)}" for each in left]
                break
            await asyncio.sleep(0.05)
        for each in members(session):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def members(session: int) -> list[psutil.Process]:
    """Returns the living processes of a session."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(each.pid) == session and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[-3:])
    except psutil.Error:
        return "?"
