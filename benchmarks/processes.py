"""Processor time of a server's processes, by role."""

from collections import defaultdict
from urllib.parse import urlsplit

import psutil

ALL = "all"
"""Role of the whole process tree, which allows comparisons between servers."""
ENGINE = "specllama.engine.worker"
"""Module of specllama's engine processes, part of their command line."""

Times = dict[tuple[str, int], float]
"""Seconds of processor time since the start of each process, by role and pid."""


def times(pid: int) -> Times:
    """Returns the processor seconds of the process `pid` and its descendants. Their roles are
    "server", "engine" and "others" for specllama, "server" and "others" for any other server.
    Empty if the process has ended."""
    found: Times = {}
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in family:
        try:
            spent = process.cpu_times()
            is_engine = ENGINE in process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        role = "server" if process is root else "engine" if is_engine else "others"
        found[role, process.pid] = float(spent.user + spent.system)
    return found


def spent(before: Times, after: Times) -> dict[str, float]:
    """Returns the processor seconds between two results of `times`, by role and for ALL. A single
    role is left out, since it equals ALL. Processes that ended in between are not counted."""
    seconds: dict[str, float] = defaultdict(float)
    for key, now in after.items():
        seconds[key[0]] += now - before.get(key, 0.0)
    if len(seconds) == 1:
        seconds.clear()
    if after:
        seconds[ALL] = sum(now - before.get(key, 0.0) for key, now in after.items())
    return dict(seconds)


def listener(url: str) -> int | None:
    """Returns the pid of the process that listens at the address of `url`. None if the address is
    on another machine, or the process belongs to another user."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return None
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS requires root
        return None
    for each in connections:
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port:
            pid: int | None = each.pid
            return pid
    return None
