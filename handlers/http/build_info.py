"""What identifies this server in answers."""

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

COMMITS = {"0.3.36": "0c1e57098"}
"""Version of llama-cpp-python, as `pyproject.toml` pins it, to the commit of llama.cpp in it, as
its changelog names it."""


@cache
def build_info() -> str:
    """`b<build>-<commit>` of llama.cpp, which clients of llama-server read, then the name and the
    version of this server. The build is 0, since a source package knows none; another llama.cpp
    than the pinned one is `unknown`."""
    return f"b0-{_commit()}-{_server()}"


def _commit() -> str:
    if os.environ.get("LLAMA_CPP_LIB_PATH"):  # where llama-cpp-python finds another library
        return "unknown"
    try:
        return COMMITS.get(version("llama-cpp-python"), "unknown")
    except PackageNotFoundError:
        return "unknown"


def _server() -> str:
    number = server_version()
    return f"specllama-{number}" if number else "specllama"


def server_version() -> str:
    """The version of this server; empty if it runs from a source tree that is not installed."""
    try:
        return version("specllama")
    except PackageNotFoundError:
        return ""
