"""Finds out which process listens on a TCP port of this machine. Linux tells; elsewhere nothing is
found."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

LISTENING = "0A"
"""A state in /proc/net/tcp."""


def listener(port: int, proc: Path = Path("/proc")) -> str:
    """The program that listens on `port`, and its process id; "" if that can't be told, as of
    another user's process. `proc` is what tests replace."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    if not sockets:
        return ""
    for folder in proc.iterdir():
        if folder.name.isdigit() and any(link in sockets for link in _open_files(folder)):
            try:
                name = (folder / "comm").read_text("utf-8", "replace").strip()
            except OSError:
                continue  # it has ended
            return f"{name} (process {folder.name})"
    return ""


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                found.add(words[9])
    return found


def _open_files(folder: Path) -> Iterator[str]:
    try:
        links = list((folder / "fd").iterdir())
    except OSError:
        return
    for link in links:
        with contextlib.suppress(OSError):  # it was closed
            yield os.readlink(link)
