"""Plain servers for client libraries, with the shipped model only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract_tests.own.servers import start

TEXTS = ("--reasoning", "off")
"""Turns reasoning off, because the shortest answers would be reasoning alone."""
EMBEDDINGS = ("--embeddings", "--pooling", "mean")


@contextmanager
def plain_server(directory: Path, *options: str) -> Iterator[str]:
    """Yields the address of a running server, which stores its files in `directory`."""
    cache = {"XDG_CACHE_HOME": str(directory), "LOCALAPPDATA": str(directory)}
    server = start(directory, *options, router=True, variables=cache)
    try:
        yield server.url
    finally:
        server.close()


def inherited() -> dict[str, str]:
    """Returns the environment variables for a library, without the user's keys, a proxy, or this
    Python environment."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
