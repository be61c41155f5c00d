"""The types of the description's schemas: `schemas.ChatMessage` is the type of `ChatMessage`.

Type checkers read them in `schemas.pyi`, which `python -m tools.schemas` writes. At run time a body
is plain decoded JSON, and each name here is `typing.Any`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Any
