"""The identification of this server in answers."""

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

BUILDS = {"0.3.36": "b11312-0c1e57098"}
"""The version of llama-cpp-python that `pyproject.toml` pins -> the build number of its llama.cpp
(from llama.cpp's tags) and the commit (from llama-cpp-python's changelog)."""
UNKNOWN = "b0-unknown"


@cache
def build_info() -> str:
    """Returns `b<build>-<commit>` of llama.cpp, which clients of llama-server read, followed by the
    name and the version of this server. A llama.cpp other than the pinned one is `b0-unknown`."""
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
    """Returns the version of this server; "" if it isn't installed, but runs from its source."""
    try:
        return version("specllama")
    except PackageNotFoundError:
        return ""
