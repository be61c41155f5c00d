"""The memory of the host, and a model's memory on each device."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from specllama.engine.wire.devices import CPU, DeviceUse

# ---- The memory available to this process, from the machine or its control group.


_MOUNT = "sys/fs/cgroup"
_NAMES = {
    2: ("memory.max", "memory.current", "inactive_file", "memory.swap.max", "memory.swap.current"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "", ""),
}
"""File names and keys by version of control groups: limit, usage, reclaimable part of the usage,
limit and usage of swap."""


@dataclass(frozen=True)
class HostMemory:
    """Memory in bytes; `available` without swapping, including reclaimable page cache."""

    available: int
    total: int
    swap: int = 0

    @property
    def most(self) -> int:
        """The amount that can be allocated before the system kills a process."""
        return self.available + self.swap

    @property
    def most_ever(self) -> int:
        """The amount that could be allocated with nothing else in memory."""
        return self.total + self.swap


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """The memory reported by Linux, with the limits of a container; None on other systems."""
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
    """The limits of each control group of this process, from its own up to the root."""
    for folder, top, version in _groups(root):
        while True:
            if (limit := _limit(folder, version)) is not None:
                yield limit
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


def _groups(root: Path) -> Iterator[tuple[Path, Path, int]]:
    """For each hierarchy: the folder of this process's group, the top folder, and the version."""
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
        # In a container, the path may be the host's, while the mounted folder is the container's.
        yield (folder if folder.is_dir() else top), top, version


def _limit(folder: Path, version: int) -> HostMemory | None:
    most, used, reclaimable, swap_most, swap_used = _NAMES[version]
    try:
        limit = int((folder / most).read_text())
        taken = int((folder / used).read_text())
        stat = dict(each.split() for each in (folder / "memory.stat").read_text().splitlines())
        taken -= int(stat.get(reclaimable, 0))
    except (OSError, ValueError):  # no limit ("max"), or an unreadable one
        return None
    swap = limit
    if swap_most:
        with suppress(OSError, ValueError):  # no limit of swap
            swap = int((folder / swap_most).read_text()) - int((folder / swap_used).read_text())
    return HostMemory(max(0, limit - taken), limit, max(0, swap))


# ---- The memory of a model on each device.
#
# llama.cpp reports it only in its log, while it allocates: the function for it has no C interface.


_BUFFER = re.compile(
    r"(\S+) +(model|LoRA|KV|RS|DSV4 \S+ state|compute|output) buffer size = +([\d.]+) MiB"
)
_LAYER = re.compile(r"load_tensors: layer +\d+ assigned to device ([^\s,]+)")
_CACHED = re.compile(r"llama_kv_cache: layer +\d+: dev = (\S+)")
_WEIGHTS = ("model", "LoRA")
_AGAIN = ("compute", "output")
"""Buffers that llama.cpp measures repeatedly: the last logged size counts. Sizes of any other
buffer add up."""
_DRAFT = "draft"
_OTHERS = (*_WEIGHTS, *_AGAIN, _DRAFT)
"""All uses except for KV caches and recurrent states."""


@dataclass
class Holdings:
    """The buffers of one model and its newest context, by llama.cpp's names; and those of its draft
    model."""

    layers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cached_layers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of layers with a KV cache, by device."""
    buffers: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Sizes in MiB, by name and use."""
    n_ctx: int = 0
    """Tokens of the requested context; 0 before the first one."""
    draft: "Holdings | None" = None

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """A context in which log lines are about the draft model, and don't change this model's
        values."""
        own = replace(self)
        self._become(Holdings())
        try:
            yield
        finally:
            self._become(replace(own, draft=replace(self)))

    def _become(self, other: "Holdings") -> None:
        vars(self).update(vars(other))

    def begin_model(self) -> None:
        """Begin with another model: forget all buffers."""
        self.draft = None
        self.layers.clear()
        self.buffers.clear()
        self.begin_context(0)

    def begin_context(self, n_ctx: int) -> None:
        """Begin with another context of this model, of `n_ctx` tokens."""
        self.n_ctx = n_ctx
        self.cached_layers.clear()
        for key in [key for key in self.buffers if key[1] not in _WEIGHTS]:
            del self.buffers[key]

    def note(self, line: str) -> None:
        """Read a line of llama.cpp's log; ignored if it isn't about memory."""
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
        """The devices with any memory of the model; devices in `descriptions` come first."""
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
    """The device of a buffer: `MTL0` for `MTL0_Mapped`, `RPC0` for `RPC0[HOST:PORT]`; the CPU for
    `CPU_Mapped` and for host memory of a device (`Vulkan_Host`)."""
    for name in names:
        if buffer == name or buffer.startswith((f"{name}_", f"{name}[")):
            return name
    return CPU if buffer.startswith(CPU) or buffer.endswith("_Host") else buffer


def _bytes(sizes: Iterable[float]) -> int:
    return int(sum(sizes) * (1 << 20))
