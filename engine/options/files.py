"""Reads and checks the files that options name, before a model is loaded.

Every function raises `OptionError` with one line that names the file.
"""

import os
import stat
from collections.abc import Iterable
from typing import Any

from specllama.engine.formats.gguf_names import part
from specllama.engine.options.text_values import json_object
from specllama.engine.options.values import OptionError, quote
from specllama.engine.shipped import model_file

_GGUF_MAGIC = b"GGUF"
_TEXT_MAX = 16 << 20  # bytes; a larger text file is most likely the wrong file


def open_regular(path: str) -> int:
    """Returns a descriptor of a regular file. Reading other kinds could block or never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot open {quote(path)}: {reason(error)}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise OptionError(f"{quote(path)} is {kind}")
    return descriptor


def reason(error: Exception) -> str:
    """Returns why a file can't be opened, in the system's words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_file(path: str) -> None:
    """Checks that `path` is a file."""
    os.close(open_regular(path))


def check_gguf(path: str) -> None:
    """Checks that `path` is a file that begins like a GGUF file."""
    with open(open_regular(path), "rb") as file:
        try:
            magic = file.read(len(_GGUF_MAGIC))
        except OSError as error:
            raise OptionError(f"cannot read {quote(path)}: {reason(error)}") from None
    if not magic:
        raise OptionError(f"{quote(path)} is empty")
    if magic != _GGUF_MAGIC:
        raise OptionError(f"{quote(path)} is not a GGUF file")


def check_model(path: str) -> None:
    """Checks that `path` is a model's GGUF file, or the first file of a split model whose files all
    exist."""
    split = part(path)
    if split is not None and split.index != 1:
        raise OptionError(
            f"{quote(path)} is part {split.index} of a model in {split.count} files: "
            f"name the first part, {quote(split.file_name(1))}"
        )
    check_gguf(path)
    if split is None:
        return
    for name in split.file_names()[1:]:
        try:
            check_gguf(name)
        except OptionError as error:
            raise OptionError(f"one file of a model in {split.count} files: {error}") from None


def check_named_model(model: str) -> None:
    """Checks the file of `--model`, which may be the name of the shipped model."""
    check_model(model_file(model))


def check_ggufs(paths: Iterable[str]) -> None:
    """Checks that all `paths` are GGUF files."""
    for path in paths:
        check_gguf(path)


def check_scaled_ggufs(pairs: Iterable[tuple[str, float]]) -> None:
    """Checks the GGUF files in pairs of a path and a scale."""
    check_ggufs(path for path, _ in pairs)


def check_directory(path: str) -> None:
    """Checks that the process can create files in the directory `path`."""
    _check_directory(path, os.R_OK | os.W_OK | os.X_OK, "reading and writing")


def check_readable_directory(path: str) -> None:
    """Checks that the process can list and read the directory `path`."""
    _check_directory(path, os.R_OK | os.X_OK, "reading")


def _check_directory(path: str, access: int, named: str) -> None:
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise OptionError(f"{quote(path)} is not a directory")
        if not os.access(path, access):
            raise OptionError(f"{quote(path)}: {named} is not permitted")
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot use {quote(path)}: {reason(error)}") from None


def read_text(path: str, most: int = _TEXT_MAX) -> str:
    """Returns the contents of a UTF-8 text file of at most `most` bytes."""
    with open(open_regular(path), "rb") as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise OptionError(f"cannot read {quote(path)}: {reason(error)}") from None
    if len(data) > most:
        raise OptionError(f"{quote(path)} is larger than {most >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError(f"{quote(path)} is not a UTF-8 text") from None


def read_json_object(path: str) -> dict[str, Any]:
    """Returns the JSON object in a UTF-8 text file."""
    return json_object(read_text(path))
