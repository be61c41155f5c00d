"""The memory that this process may have from the machine, or from its control group."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNT = "sys/fs/cgroup"
_NAMES = {
    2: ("memory.max", "memory.current", "inactive_file", "memory.swap.max", "memory.swap.current"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "", ""),
}
"""By version of control groups: the limit, the use, the part of it that is given up at need, and
the same two of swap."""


@dataclass(frozen=True)
class HostMemory:
    """Bytes; `available` without swapping, page cache that is given up at need included."""

    available: int
    total: int
    swap: int = 0

    @property
    def most(self) -> int:
        """What can be taken before the system ends a process for it."""
        return self.available + self.swap

    @property
    def most_ever(self) -> int:
        """What could be taken if nothing else were in memory."""
        return self.total + self.swap


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """The memory as Linux tells of it, a container's limits included; None elsewhere."""
    try:
        machine = _kilobytes(root / "proc/meminfo")
        found = HostMemory(machine["MemAvailable"], machine["MemTotal"], machine.get("SwapFree", 0))
    except (OSError, KeyError, ValueError):
        return None
    for limit in _limits(root):
        found = HostMemory(
            min(found.available, limit.available),
            min(found.total, limit.total),
            min(found.swap, limit.swap),
        )
    return found


def _kilobytes(path: Path) -> dict[str, int]:
    sizes = {}
    for line in path.read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            sizes[name] = int(rest[:-3]) << 10
    return sizes


def _limits(root: Path) -> Iterator[HostMemory]:
    """What each control group that this process is in leaves it, from its own up to the root."""
    for folder, top, version in _groups(root):
        while True:
            if (limit := _limit(folder, version)) is not None:
                yield limit
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


def _groups(root: Path) -> Iterator[tuple[Path, Path, int]]:
    """The folder of each hierarchy's group, the hierarchy's own, and its version."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path:
            continue
        if not controllers:
            top, version = root / _MOUNT, 2
        elif "memory" in controllers.split(","):
            top, version = root / _MOUNT / "memory", 1
        else:
            continue
        folder = top / path.lstrip("/")
        # In a container, the path may be that of the host, and what is mounted its own.
        yield (folder if folder.is_dir() else top), top, version


def _limit(folder: Path, version: int) -> HostMemory | None:
    most, used, reclaimable, swap_most, swap_used = _NAMES[version]
    try:
        limit = int((folder / most).read_text())
        taken = int((folder / used).read_text())
        stat = dict(each.split() for each in (folder / "memory.stat").read_text().splitlines())
        taken -= int(stat.get(reclaimable, 0))
    except (OSError, ValueError):  # no limit ("max"), or none that can be read
        return None
    swap = limit
    if swap_most:
        with suppress(OSError, ValueError):  # as much as there is
            swap = int((folder / swap_most).read_text()) - int((folder / swap_used).read_text())
    return HostMemory(max(0, limit - taken), limit, max(0, swap))
