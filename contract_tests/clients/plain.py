"""Plain servers for libraries that others wrote: they know no model but the shipped one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract_tests.own.servers import start

TEXTS = ("--reasoning", "off")
"""The shortest answers would be thoughts alone."""
EMBEDDINGS = ("--embeddings", "--pooling", "mean")


@contextmanager
def plain_server(directory: Path, *options: str) -> Iterator[str]:
    """Its address, while it runs. It keeps what it stores in `directory`."""
    cache = {"XDG_CACHE_HOME": str(directory), "LOCALAPPDATA": str(directory)}
    server = start(directory, *options, router=True, variables=cache)
    try:
        yield server.url
    finally:
        server.close()


def inherited() -> dict[str, str]:
    """The variables that a library gets: neither a user's keys nor a proxy, and nothing of the
    environment that this runs in."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
