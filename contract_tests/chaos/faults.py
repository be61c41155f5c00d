"""Faults of a server, drawn from a seed, done to real processes, and healed."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from contract_tests.chaos.proxy import Proxy
from contract_tests.load.asks import DATABASE, DISK, SERVER
from contract_tests.load.fleet import family, model_of
from contract_tests.load.keeper import Keeper

KILL, SEGV, TERM, STOP, FOR_EVER = "killed", "ended by SIGSEGV", "terminated", "stopped", "stuck"
FULL, DESCRIPTORS, STORM = "full", "without descriptors", "torn"
ANY_ENGINE = "engine:"
NETWORK = "network"
MIB = 1 << 20
SIGNALS = {KILL: signal.SIGKILL, SEGV: signal.SIGSEGV, TERM: signal.SIGTERM,
           STOP: signal.SIGSTOP, FOR_EVER: signal.SIGSTOP}  # fmt: skip
WEIGHTS = {"engine": 30.0, "server": 14.0, DISK: 7.0, NETWORK: 10.0, "descriptors": 7.0}
HELPER = 8.0
"""The weight of each kind of helper process that runs."""
HEARTBEAT = 30.0  # s without a message after which an engine process is replaced


@dataclass
class Fault:
    """`what` was done to `target`, one of the words of `Ask.uses`. `healed` is the time when the
    fault itself was gone, `recovered` the time of the next right answer."""

    what: str
    target: str
    pid: int = 0
    begun: float = 0.0
    holds: float = 0.0
    healed: float | None = None
    recovered: float | None = None
    note: str = ""

    @property
    def kind(self) -> str:
        return f"{self.target.partition(':')[0]} {self.what}"

    def harms(self, uses: Iterable[str]) -> bool:
        if self.target == ANY_ENGINE:
            return any(each.startswith(ANY_ENGINE) for each in uses)
        if self.target == DISK:
            return bool({DISK, DATABASE} & {*uses})
        return self.target in (SERVER, NETWORK) or self.target in uses

    def since(self) -> float | None:
        """Returns the time from which recovery counts: the beginning of the fault if the server has
        to replace a process, otherwise the end of the fault."""
        return self.begun if self.what in (KILL, SEGV, TERM, FOR_EVER) else self.healed

    def recovery(self) -> float | None:
        """Returns the seconds until the next right answer."""
        since = self.since()
        return None if since is None or self.recovered is None else self.recovered - since

    def over(self) -> float | None:
        """Returns the time when the fault was both healed and recovered from."""
        if self.healed is None or self.recovered is None:
            return None
        return max(self.healed, self.recovered)

    def as_text(self, zero: float) -> str:
        recovered = "not recovered" if self.recovered is None else (
            f"right again {self.recovered - self.begun:.1f} s later")  # fmt: skip
        held = f" for {self.holds:.1f} s" if self.holds else ""
        process = f" (process {self.pid})" if self.pid else ""
        return f"{self.begun - zero:7.1f} s  {self.target}{process} {self.what}{held}{self.note}," \
               f" {recovered}"  # fmt: skip


class Disk:
    """A small file system in memory, or a directory if none can be mounted (`why_not` has the
    reason)."""

    def __init__(self, path: Path, size: int = 128) -> None:
        self.path = path
        self.why_not = ""
        path.mkdir()
        try:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(path)],
                capture_output=True, encoding="utf-8", check=False,
            )  # fmt: skip
            if done.returncode:
                self.why_not = f"no small disk could be mounted: {done.stderr.strip()}"
        except OSError as error:
            self.why_not = f"no small disk could be mounted: {error}"

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(MIB))
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(64))

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        self.empty()
        if not self.why_not:
            subprocess.run(["umount", "-l", str(self.path)], check=False)


class Faults:
    """Draws faults, does them, and heals them. `history` has all faults."""

    def __init__(
        self, keeper: Keeper, proxy: Proxy, disk: Disk | None, dice: random.Random
    ) -> None:
        self.history: list[Fault] = []
        self._keeper = keeper
        self._proxy = proxy
        self._disk = disk
        self._dice = dice
        self._limits: dict[int, tuple[int, int]] = {}

    def draw(self, lane: int) -> Fault | None:
        """Returns a fault that is possible now. One lane has faults of processes, the other all
        others."""
        dice = self._dice
        if lane:
            around = [NETWORK, "descriptors"]
            if self._disk is not None and not self._disk.why_not:
                around.append(DISK)
            match dice.choices(around, [WEIGHTS[each] for each in around])[0]:
                case "network":
                    return Fault(STORM, NETWORK, holds=dice.uniform(2, 8))
                case "disk":
                    return Fault(FULL, DISK, holds=dice.uniform(2, 8))
                case _:
                    return self._scarce()
        if not self._keeper.alive():
            return None
        there = family(self._keeper.pid)
        kinds = sorted({kind for kind, _ in there})
        chosen = dice.choices(kinds, [WEIGHTS.get(kind, HELPER) for kind in kinds])[0]
        process = dice.choice([each for kind, each in there if kind == chosen])
        target = f"{ANY_ENGINE}{model_of(process)}" if chosen == "engine" else chosen
        fault = Fault(KILL, target, pid=process.pid)
        match chosen:
            case "server":
                fault.what = dice.choice((KILL, KILL, SEGV, TERM, STOP, STOP))
                if fault.what == STOP:
                    fault.holds = HEARTBEAT + 5 if dice.random() < 0.15 else dice.uniform(0.5, 8)
            case "engine":
                fault.what = dice.choice((KILL,) * 4 + (SEGV,) * 3 + (STOP,) * 4 + (FOR_EVER,))
            case _:
                fault.what = dice.choice((KILL,) * 3 + (SEGV,) * 2 + (STOP,) * 2 + (FOR_EVER,))
        if fault.what == STOP and not fault.holds:
            fault.holds = dice.uniform(0.5, 8)
        return fault

    def _scarce(self) -> Fault | None:
        if not self._keeper.alive():
            return None
        there = [each for each in family(self._keeper.pid) if each[0] in ("server", "engine")]
        if not there:
            return None
        kind, process = self._dice.choice(there)
        target = SERVER if kind == "server" else f"{ANY_ENGINE}{model_of(process)}"
        return Fault(DESCRIPTORS, target, pid=process.pid, holds=self._dice.uniform(2, 6))

    def begin(self, fault: Fault) -> None:
        """Begins a fault. Raises ProcessLookupError or psutil.NoSuchProcess if the process has just
        ended."""
        match fault.what:
            case "torn":
                self._proxy.storm = True
            case "full":
                assert self._disk is not None
                self._disk.fill()
            case "without descriptors":
                process = psutil.Process(fault.pid)
                soft, hard = resource.prlimit(fault.pid, resource.RLIMIT_NOFILE)
                left = self._dice.randrange(4)
                fault.note = f", {left} left"
                self._limits[fault.pid] = (soft, hard)
                resource.prlimit(
                    fault.pid, resource.RLIMIT_NOFILE, (process.num_fds() + left, hard)
                )
            case what:
                if what in (STOP, FOR_EVER):
                    self._keeper.stopped.add(fault.pid)
                os.kill(fault.pid, SIGNALS[what])
        fault.begun = time.monotonic()
        if fault.what in (KILL, SEGV, TERM):
            fault.healed = fault.begun
        self.history.append(fault)

    def heal(self, fault: Fault) -> None:
        match fault.what:
            case "torn":
                self._proxy.storm = False
            case "full":
                assert self._disk is not None
                self._disk.empty()
            case "without descriptors":
                with contextlib.suppress(ProcessLookupError):
                    limits = self._limits.pop(fault.pid)
                    resource.prlimit(fault.pid, resource.RLIMIT_NOFILE, limits)
            case "stopped" | "stuck":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(fault.pid, signal.SIGCONT)
                self._keeper.stopped.discard(fault.pid)
        fault.healed = time.monotonic()

    def look(self) -> None:
        """Marks faults of stuck processes as healed once the process has been replaced."""
        for fault in self.history:
            if fault.what == FOR_EVER and fault.healed is None and not lives(fault.pid):
                fault.healed = time.monotonic()

    def heal_all(self) -> None:
        self.look()
        for fault in self.history:
            if fault.healed is None:
                self.heal(fault)


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
