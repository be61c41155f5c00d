"""Files below one directory, which no path can leave.

Each component of a path is opened by itself, relative to the directory before it, and never follows
a link. The target of a link is read, and its components are opened in the same way, so a link may
lead to another place below the directory, and nowhere else. It makes no difference if another
program changes links meanwhile. Only regular files and directories are opened, and no file of the
kernel, such as those in /proc.
"""

import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from specllama.engine.helpers.files.files_jobs import ToolError

MAX_LINKS: Final = 40
MAX_PATH: Final = 4096  # characters
NEW_FILE: Final = 0o666
NEW_DIRECTORY: Final = 0o777

_DIRECTORY: Final = (
    os.O_RDONLY
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_FILE: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_UNREAL: Final = frozenset(
    (
        *("binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "securityfs"),
        *("selinuxfs", "sysfs", "tracefs"),
    )
)
"""Types of file systems whose files are interfaces of the kernel."""


def unreal_devices(mounts: Path = Path("/proc/self/mountinfo")) -> frozenset[int]:
    """Returns the device numbers of the mounted file systems of the types `_UNREAL`. Empty if the
    system doesn't list mounts."""
    found: set[int] = set()
    with suppress(OSError):
        for line in mounts.read_text("utf-8", "replace").splitlines():
            fields, _, after = line.partition(" - ")
            if after.split(" ", 1)[0] in _UNREAL:
                with suppress(ValueError, IndexError):
                    major, minor = map(int, fields.split()[2].split(":"))
                    found.add(os.makedev(major, minor))
    return frozenset(found)


class Tree:
    """The directory `root`, an absolute path. Raises ToolError if it can't be opened. Paths of its
    methods are absolute or begin at `directory`."""

    def __init__(self, root: str, directory: str = "") -> None:
        self.root = root
        self._unreal = unreal_devices()
        try:
            self._root = os.open(root, _DIRECTORY)
        except OSError as error:
            raise ToolError(f"the directory of tools can't be opened: {_why(error)}") from None
        self.directory = self.absolute(directory or root, root)

    def close(self) -> None:
        os.close(self._root)

    def absolute(self, path: str, directory: str = "") -> str:
        """Returns the absolute form of a path, without `.` and `..`. Raises ToolError if it isn't
        below the root."""
        if len(path) > MAX_PATH or "\0" in path:
            raise ToolError("the path is too long, or has a null character")
        if path == "~" or path.startswith("~/"):
            path = os.path.expanduser(path)
        full = os.path.normpath(os.path.join(directory or self.directory, path))
        if full != self.root and not full.startswith(os.path.join(self.root, "")):
            raise ToolError(f"{path} is outside of the directory of tools, {self.root}")
        return full

    def is_unreal(self, status: os.stat_result) -> bool:
        """True for files that are interfaces of the kernel."""
        return status.st_dev in self._unreal

    def kind(self, path: str) -> str:
        """Returns "file", "dir", "" if there is nothing, or "other"."""
        try:
            with self._place(path) as (parent, name):
                status = self._checked(os.stat(name, dir_fd=parent, follow_symlinks=False))
        except (OSError, ToolError):
            return ""
        if stat.S_ISDIR(status.st_mode):
            return "dir"
        return "file" if stat.S_ISREG(status.st_mode) else "other"

    def open_directory(self, path: str) -> int:
        """Returns a descriptor of a directory. Raises ToolError."""
        try:
            with self._place(path) as (parent, name):
                descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise ToolError(f"cannot open {path}: {_why(error)}") from None
        return self._kept(descriptor, path, stat.S_ISDIR)

    def open_file(self, path: str) -> tuple[int, int]:
        """Returns a descriptor of a regular file for reading, and its size. Raises ToolError."""
        try:
            with self._place(path) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):  # opening a device may have an effect
                    raise ToolError(f"{path} is not a regular file")
                descriptor = os.open(name, _FILE, dir_fd=parent)
        except OSError as error:
            raise ToolError(f"cannot stat file: {path}: {_why(error)}") from None
        return self._kept(descriptor, path, stat.S_ISREG), os.fstat(descriptor).st_size

    def read(self, path: str, most: int) -> bytes:
        """Returns the contents of a file of at most `most` bytes. Raises ToolError."""
        descriptor, size = self.open_file(path)
        with open(descriptor, "rb") as file:
            data = b"" if size > most else file.read(most + 1)
        if max(size, len(data)) > most:
            raise ToolError(f"file too large ({max(size, len(data))} bytes, max {most})")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Creates or replaces a file at once: other programs see the old or the new contents.
        Creates its directories. Raises ToolError."""
        try:
            with self._place(path, makes=True) as (parent, name):
                _replace(parent, name, data)
        except OSError as error:
            raise ToolError(f"failed to write file: {path}: {_why(error)}") from None

    def _kept(self, descriptor: int, path: str, is_kind: object) -> int:
        assert callable(is_kind)
        try:
            if not is_kind(self._checked(os.fstat(descriptor)).st_mode):
                raise ToolError(f"{path} is not a regular file or directory")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _checked(self, status: os.stat_result) -> os.stat_result:
        if self.is_unreal(status):
            raise ToolError("files of the system, such as those of /proc, can't be used")
        return status

    @contextmanager
    def _place(self, path: str, *, makes: bool = False) -> Iterator[tuple[int, str]]:
        """Yields a descriptor of the directory of a file, and the name in it, which is no link. The
        root is "." in itself. With `makes`, missing directories are created. Raises OSError and
        ToolError."""
        below = os.path.relpath(self.absolute(path), self.root)
        waiting = deque(below.split(os.sep))
        opened = [os.dup(self._root)]
        n_links = 0
        try:
            while True:
                name = waiting.popleft() if waiting else "."
                if name in ("", ".") and waiting:
                    continue
                if name == "..":
                    if len(opened) == 1:
                        raise ToolError(f"{path} is a link out of the directory of tools")
                    os.close(opened.pop())
                    continue
                if name in ("", ".") or (target := _target(opened[-1], name)) is None:
                    if not waiting:
                        yield opened[-1], name or "."
                        return
                    opened.append(_entered(opened[-1], name, makes))
                    self._checked(os.fstat(opened[-1]))
                    continue
                n_links += 1
                if n_links > MAX_LINKS:
                    raise ToolError(f"{path} has too many links")
                if os.path.isabs(target):
                    target = os.path.relpath(self._inside(target, path), self.root)
                    while len(opened) > 1:
                        os.close(opened.pop())
                waiting.extendleft(reversed(target.split(os.sep)))
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _inside(self, target: str, path: str) -> str:
        try:
            return self.absolute(target)
        except ToolError:
            raise ToolError(f"{path} is a link out of the directory of tools") from None


def _target(directory: int, name: str) -> str | None:
    """Returns the target of a link; None for anything else."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _entered(directory: int, name: str, makes: bool) -> int:
    if makes:
        with suppress(FileExistsError):
            os.mkdir(name, NEW_DIRECTORY, dir_fd=directory)
    return os.open(name, _DIRECTORY, dir_fd=directory)


def _replace(parent: int, name: str, data: bytes) -> None:
    mode = None
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError("it is not a regular file")
        mode = stat.S_IMODE(status.st_mode)
    part = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(part, flags, NEW_FILE, dir_fd=parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
        os.replace(part, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=parent)
        raise


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
