"""The files of a simulated machine: real files in a folder, with the simulated clock's times, and
with failures that a seed determines."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any

from tests.simulation.world import World

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE)


@dataclass(frozen=True)
class _Status:
    st_mtime: float
    st_size: int


@dataclass(frozen=True)
class _Entry:
    """Replaces `os.DirEntry`."""

    disk: "SimulatedDisk"
    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path)

    def stat(self, *, follow_symlinks: bool = True) -> _Status:
        self.disk.world.pause()
        size = os.stat(self.path).st_size
        return _Status(self.disk.times.get(self.path, 0.0), size)


class SimulatedDisk:
    """Replaces `os` and `open` in the modules that read and write states."""

    def __init__(self, world: World, happens: Callable[[str], bool]) -> None:
        """`happens` decides for each call whether it fails (`disk`), whether a file that was there
        a moment ago is `gone`, or whether it is `torn`: only its first half is on the disk."""
        self.world = world
        self.times: dict[str, float] = {}
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _touch(self, path: Path | str) -> None:
        self.times[os.fspath(path)] = self.world.look()

    def _may_fail(self, *among: int) -> None:
        self.world.pause()
        if self._happens("disk"):
            code = self.world.random.choice(among or ERRORS)
            self.world.happens(f"disk: {errno.errorcode[code]}")
            raise OSError(code, os.strerror(code))

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[_Entry]]:
        self._may_fail(errno.EIO, errno.EMFILE)
        yield iter([_Entry(self, os.path.join(path, name)) for name in sorted(os.listdir(path))])

    def utime(self, path: Path | str) -> None:
        self._may_fail(errno.EIO)
        os.utime(path)
        self._touch(path)

    def replace(self, source: str, target: Path | str) -> None:
        self._may_fail(errno.EIO)
        os.replace(source, target)
        if self._happens("torn"):
            os.truncate(target, os.stat(target).st_size // 2)
        self._touch(target)

    def unlink(self, path: Path | str) -> None:
        self._may_fail(errno.EIO)
        os.unlink(path)

    def open(self, path: Path | str, flags: int) -> int:
        self._may_fail(errno.EIO, errno.EMFILE)
        if self._happens("gone"):
            os.unlink(path)
        return os.open(path, flags)

    def open_file(self, file: Any, mode: str = "r", **how: Any) -> Any:
        opened: Any = open(file, mode, **how)  # noqa: SIM115  # the caller closes it
        return _Written(self, opened) if "w" in mode else opened

    def write(self, file: BufferedWriter, data: Any) -> int:
        """Writes `data`; before an error, writes the first half of it."""
        self.world.sleep(len(memoryview(data).cast("B")) * 1e-9 if len(data) else 0.0)
        try:
            self._may_fail()
        except OSError:
            file.write(bytes(memoryview(data).cast("B"))[: len(data) // 2])
            raise
        return file.write(data)


class _Written:
    """A file that is open for writing."""

    def __init__(self, disk: SimulatedDisk, file: BufferedWriter) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: Any) -> int:
        return self._disk.write(self._file, data)

    def __enter__(self) -> "_Written":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
