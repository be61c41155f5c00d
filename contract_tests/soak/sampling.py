"""Samples the resources of a server's processes every few seconds."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import psutil

from contract_tests.load.fleet import MIB, family, model_of
from contract_tests.soak.slopes import Slope, fit

MARGINS = {
    "RSS, MiB": 24.0, "PSS, MiB": 24.0, "descriptors": 8.0, "threads": 4.0, "processes": 1.0,
}  # fmt: skip
"""The allowed growth over the run. Allocators and caches fill up slowly."""
LATENCY, SLOWER = "latency, ms", 0.5
"""The allowed growth of a latency, relative to its median."""
HOUR = 3600.0
WARM_UP = 1 / 3
"""The share of the run that isn't judged."""


@dataclass
class Series:
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """A series after the warm-up, and whether it grows."""

    who: str
    what: str
    slope: Slope
    margin: float

    @property
    def grows(self) -> bool:
        return self.slope.grows(self.margin)

    @property
    def verdict(self) -> str:
        """The verdict; growth within the margin is distinguished from no growth."""
        if self.grows:
            return "grows"
        return "grows within the margin" if self.slope.low > 0 else "flat"

    def row(self) -> str:
        slope = self.slope
        cells = (
            self.who,
            self.what,
            f"{slope.level:.1f}",
            f"{slope.value * HOUR:+.2f}",
            f"{slope.low * HOUR:+.2f} to {slope.high * HOUR:+.2f}",
            f"{slope.growth:+.2f}",
            f"{self.margin:.1f}",
            self.verdict,
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| process | what | median | slope per hour | 99% interval | growth over the run | margin | |",
    "|---|---|---|---|---|---|---|---|",
)


class Samples:
    """Series by kind of process and resource. Processes of one kind are added up, because they come
    and go."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.series: defaultdict[tuple[str, str], Series] = defaultdict(Series)
        self._now = now
        self._begun = now()
        self._models: dict[int, str] = {}
        self.unjudged: list[str] = []

    @property
    def seconds(self) -> float:
        return self._now() - self._begun

    def add(self, who: str, what: str, value: float) -> None:
        series = self.series[who, what]
        series.times.append(self.seconds)
        series.values.append(value)

    def look(self, pid: int) -> None:
        """Takes one sample of each process of the server."""
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        for kind, process in family(pid):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                who = f"engine {self._model(process)}" if kind == "engine" else kind
                memory = process.memory_full_info()
                sums[who, "RSS, MiB"] += memory.rss / MIB
                sums[who, "PSS, MiB"] += memory.pss / MIB
                sums[who, "descriptors"] += process.num_fds()
                sums[who, "threads"] += process.num_threads()
                sums[who, "processes"] += 1
        for (who, what), value in sums.items():
            self.add(who, what, value)

    def _model(self, process: psutil.Process) -> str:
        found = self._models.get(process.pid) or model_of(process)
        if found:
            self._models[process.pid] = found
        return found or "that loads"

    def findings(self) -> list[Finding]:
        """Returns a finding for each series. `unjudged` then lists series with too few samples."""
        total = self.seconds
        found = []
        self.unjudged = []
        for (who, what), series in sorted(self.series.items()):
            kept = [
                (t, v)
                for t, v in zip(series.times, series.values, strict=True)
                if t > total * WARM_UP
            ]
            slope = fit([t for t, _ in kept], [v for _, v in kept], total)
            if slope is None:
                self.unjudged.append(f"{what} of {who} ({len(kept)} samples)")
                continue
            margin = SLOWER * slope.level if what == LATENCY else MARGINS[what]
            found.append(Finding(who, what, slope, margin))
        return found


def listener(url: str) -> int:
    """Returns the process on this machine that listens at an address; 0 if none is found."""
    parsed = httpx.URL(url)
    if parsed.host not in ("127.0.0.1", "localhost", "::1"):
        return 0
    with contextlib.suppress(psutil.AccessDenied):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == parsed.port:
                return each.pid or 0
    return 0
