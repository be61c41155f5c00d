"""Free memory as Linux and its control groups tell of it, from folders like theirs."""

from pathlib import Path

import pytest

from specllama.engine.worker.backend.memory import HostMemory, host_memory

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 of 16 GiB free, and 2 of swap."""
    write(
        tmp_path / "proc/meminfo",
        f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n"
        f"SwapFree: {2 << 20} kB\nHugePages_Total: 0\n",
    )
    return tmp_path


def write(path: Path, text: str | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def group(folder: Path, limit: str | int, used: int, cached: int, version: int = 2) -> None:
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    write(folder / names[0], limit)
    write(folder / names[1], used)
    write(folder / "memory.stat", f"anon 5\n{names[2]} {cached}")


def test_a_machine_without_limits(root: Path) -> None:
    found = host_memory(root)
    assert found == HostMemory(8 * GIB, 16 * GIB, 2 * GIB)
    assert found.most == 10 * GIB


def test_no_such_system(tmp_path: Path) -> None:
    assert host_memory(tmp_path) is None
    write(tmp_path / "proc/meminfo", "MemTotal: many kB")
    assert host_memory(tmp_path) is None


def test_the_limit_of_a_group_and_the_page_cache_in_it(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a/b")
    group(root / "sys/fs/cgroup/a/b", 4 * GIB, used=3 * GIB, cached=GIB)
    assert host_memory(root) == HostMemory(2 * GIB, 4 * GIB, 2 * GIB)
    write(root / "sys/fs/cgroup/a/b/memory.swap.max", GIB)
    write(root / "sys/fs/cgroup/a/b/memory.swap.current", GIB // 2)
    assert host_memory(root) == HostMemory(2 * GIB, 4 * GIB, GIB // 2)


def test_groups_above_limit_as_well(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a/b")
    group(root / "sys/fs/cgroup/a/b", "max", used=GIB, cached=0)
    group(root / "sys/fs/cgroup/a", 3 * GIB, used=2 * GIB, cached=0)
    assert host_memory(root) == HostMemory(GIB, 3 * GIB, 2 * GIB)


def test_a_path_of_the_host_in_a_container(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/../elsewhere\n")
    group(root / "sys/fs/cgroup", 2 * GIB, used=GIB, cached=0)
    assert host_memory(root) == HostMemory(GIB, 2 * GIB, 2 * GIB)


def test_the_older_groups(root: Path) -> None:
    write(root / "proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/a\n0::/")
    group(root / "sys/fs/cgroup/memory/a", 2 * GIB, used=GIB, cached=GIB // 2, version=1)
    found = host_memory(root)
    assert found is not None
    assert (found.available, found.total) == (GIB + GIB // 2, 2 * GIB)


def test_a_limit_far_above_the_machine(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:memory:/a")
    group(root / "sys/fs/cgroup/memory/a", 9223372036854771712, used=GIB, cached=0, version=1)
    assert host_memory(root) == HostMemory(8 * GIB, 16 * GIB, 2 * GIB)


def test_more_used_than_allowed(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a")
    group(root / "sys/fs/cgroup/a", GIB, used=2 * GIB, cached=0)
    found = host_memory(root)
    assert found is not None
    assert found.available == 0
