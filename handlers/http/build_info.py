"""What identifies this server in answers."""

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

BUILDS = {"0.3.36": "b11312-0c1e57098"}
"""Version of llama-cpp-python, as `pyproject.toml` pins it, to the build of llama.cpp in it and its
commit: the changelog names the commit, and llama.cpp's tags number the builds."""
UNKNOWN = "b0-unknown"


@cache
def build_info() -> str:
    """`b<build>-<commit>` of llama.cpp, which clients of llama-server read, then the name and the
    version of this server. Another llama.cpp than the pinned one is build 0 of commit `unknown`."""
    return f"{_build()}-{_server()}"


def _build() -> str:
    if os.environ.get("LLAMA_CPP_LIB_PATH"):  # where llama-cpp-python finds another library
        return UNKNOWN
    try:
        return BUILDS.get(version("llama-cpp-python"), UNKNOWN)
    except PackageNotFoundError:
        return UNKNOWN


def _server() -> str:
    number = server_version()
    return f"specllama-{number}" if number else "specllama"


def server_version() -> str:
    """The version of this server; empty if it runs from a source tree that is not installed."""
    try:
        return version("specllama")
    except PackageNotFoundError:
        return ""
