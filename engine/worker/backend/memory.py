"""What there is of memory, and what devices hold."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from specllama.engine.wire.devices import CPU, DeviceUse

# ---- The memory that this process may have from the machine, or from its control group.


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


# ---- The parts of a model that each device holds.
#
# llama.cpp tells it in its log while it allocates, and nowhere else: its function for that is of
# C++.


_BUFFER = re.compile(
    r"(\S+) +(model|LoRA|KV|RS|DSV4 \S+ state|compute|output) buffer size = +([\d.]+) MiB"
)
_LAYER = re.compile(r"load_tensors: layer +\d+ assigned to device ([^\s,]+)")
_CACHED = re.compile(r"llama_kv_cache: layer +\d+: dev = (\S+)")
_WEIGHTS = ("model", "LoRA")
_AGAIN = ("compute", "output")
"""Buffers that are told each time they are measured; of the others there are several."""
_DRAFT = "draft"
_OTHERS = (*_WEIGHTS, *_AGAIN, _DRAFT)
"""What is no KV cache and no recurrent state."""


@dataclass
class Holdings:
    """The buffers of one model and its newest context, by the names that llama.cpp gives them; and
    those of the model that drafts for it."""

    layers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cached_layers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Layers with a KV cache on a device."""
    buffers: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """MiB by name and use."""
    n_ctx: int = 0
    """Tokens of the context that was asked for; 0 before the first one."""
    draft: "Holdings | None" = None

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """What is told meanwhile is of the model that drafts for this one, and replaces nothing."""
        own = replace(self)
        self._become(Holdings())
        try:
            yield
        finally:
            self._become(replace(own, draft=replace(self)))

    def _become(self, other: "Holdings") -> None:
        vars(self).update(vars(other))

    def begin_model(self) -> None:
        """What is told from now on is of another model."""
        self.draft = None
        self.layers.clear()
        self.buffers.clear()
        self.begin_context(0)

    def begin_context(self, n_ctx: int) -> None:
        """The same of another context of this model, of `n_ctx` tokens."""
        self.n_ctx = n_ctx
        self.cached_layers.clear()
        for key in [key for key in self.buffers if key[1] not in _WEIGHTS]:
            del self.buffers[key]

    def note(self, line: str) -> None:
        """Learn from a line of llama.cpp's log, if it tells of memory."""
        if found := _BUFFER.search(line):
            name, use, size = found.groups()
            if use in _AGAIN:
                self.buffers[name, use] = 0.0
            self.buffers[name, use] += float(size)
        elif found := _LAYER.search(line):
            self.layers[found[1]] += 1
        elif found := _CACHED.search(line):
            self.cached_layers[found[1]] += 1

    def by_device(self, descriptions: Mapping[str, str]) -> list[DeviceUse]:
        """The devices that hold anything, those in front that `descriptions` names."""
        sizes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for (name, use), size in self.buffers.items():
            sizes[_device(name, descriptions)][use] += size
        for (name, _), size in self.draft.buffers.items() if self.draft else ():
            sizes[_device(name, descriptions)][_DRAFT] += size
        names = [*descriptions, *sorted(sizes.keys() - descriptions.keys())]
        return [
            DeviceUse(
                name=name,
                description=descriptions.get(name, ""),
                n_layers=self.layers.get(name, 0),
                model=_bytes(sizes[name][use] for use in _WEIGHTS),
                kv_cache=_bytes(size for use, size in sizes[name].items() if use not in _OTHERS),
                compute=_bytes(sizes[name][use] for use in _AGAIN),
                draft=_bytes([sizes[name][_DRAFT]]),
            )
            for name in names
            if name in sizes
        ]


def _device(buffer: str, names: Iterable[str]) -> str:
    """The device of a buffer: `MTL0` of `MTL0_Mapped`, `RPC0` of `RPC0[HOST:PORT]`; the CPU of
    `CPU_Mapped` and of what is the host's part of a device (`Vulkan_Host`)."""
    for name in names:
        if buffer == name or buffer.startswith((f"{name}_", f"{name}[")):
            return name
    return CPU if buffer.startswith(CPU) or buffer.endswith("_Host") else buffer


def _bytes(sizes: Iterable[float]) -> int:
    return int(sum(sizes) * (1 << 20))
