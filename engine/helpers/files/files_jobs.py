"""The messages between the server and a process of the built-in tools, and the arguments in them.

A process works on one job at a time. Each `FileJob` is answered with one `FileAnswer`.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from specllama.engine.wire.framing import Started

FileTool = Literal[
    "read_file", "file_glob_search", "grep_search", "write_file", "edit_file", "get_info"
]
SHELL: Final = "exec_shell_command"
"""The tool that needs no such process."""


class ToolError(Exception):
    """A tool can't do its work. The message is for the model."""


class FileJob(msgspec.Struct, frozen=True):
    """A call of a tool. `arguments` is a JSON object. `root` is the directory of tools, an absolute
    path without links; relative paths begin at `directory`, below it or "". With `base64`,
    `read_file` returns bytes."""

    tool: FileTool
    arguments: bytes
    root: str
    directory: str = ""
    base64: bool = False


class FileAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The result, a JSON object. `exhausted`: the process ran out of memory and can't do another
    job."""

    result: bytes
    exhausted: bool = False


job_decoder = msgspec.msgpack.Decoder(FileJob)
answer_decoder = msgspec.msgpack.Decoder(Started | FileAnswer)


# ---- The arguments of a tool, which a model has written. All functions raise ToolError.


_MISSING: Final = "\0"


def text(arguments: Mapping[str, Any], name: str, default: str = _MISSING) -> str:
    """Returns a text. Without `default`, it is required."""
    value = arguments.get(name)
    if value is None and default != _MISSING:
        return default
    if not isinstance(value, str):
        raise ToolError(f'"{name}" must be a string')
    return value


def integer(arguments: Mapping[str, Any], name: str, default: int) -> int:
    """Returns an integer; models may write it as 3.0 or as a text."""
    value = arguments.get(name)
    if value is None:
        return default
    try:
        if isinstance(value, bool) or (isinstance(value, str) and len(value) > 20):
            raise ValueError
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise ToolError(f'"{name}" must be an integer') from None
    return max(-(2**31), min(number, 2**31 - 1))


def flag(arguments: Mapping[str, Any], name: str) -> bool:
    """Returns a flag; False is the default."""
    value = arguments.get(name)
    if value is not None and not isinstance(value, bool):
        raise ToolError(f'"{name}" must be true or false')
    return bool(value)
