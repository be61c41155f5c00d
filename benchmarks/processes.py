"""Processor time of a server's processes, by what they are for."""

from collections import defaultdict
from urllib.parse import urlsplit

import psutil

ALL = "all"
"""The whole tree of processes: what can be compared between servers."""
ENGINE = "specllama.engine.worker"
"""Module of specllama's engine processes, in their command line."""

Times = dict[tuple[str, int], float]
"""Seconds of processor time since their start, by role and pid."""


def times(pid: int) -> Times:
    """The processor seconds of the process `pid` and its descendants: "server", "engine" and
    "others" of specllama, "server" and "others" of any other server. Empty if it has ended."""
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
    """Seconds between two `times`, by role and for ALL; roles of a single process tree are left
    out, since they are ALL. What has ended in between is not counted."""
    seconds: dict[str, float] = defaultdict(float)
    for key, now in after.items():
        seconds[key[0]] += now - before.get(key, 0.0)
    if len(seconds) == 1:
        seconds.clear()
    if after:
        seconds[ALL] = sum(now - before.get(key, 0.0) for key, now in after.items())
    return dict(seconds)


def listener(url: str) -> int | None:
    """The process on this machine that listens where `url` leads; None if it is elsewhere, or
    somebody else's."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return None
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS asks for root
        return None
    for each in connections:
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port:
            pid: int | None = each.pid
            return pid
    return None
