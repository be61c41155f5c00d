"""Reads the files that file URLs name, below one directory."""

import os
import re
from typing import Final

from specllama.engine.helpers.fetch.errors import FetchError
from specllama.engine.options import OptionError
from specllama.engine.options.files import open_regular

MAX_PATH: Final = 255  # characters, as with llama-server

_FORBIDDEN: Final = re.compile(
    # Control characters, wildcards and streams of Windows, and look-alikes of dots and slashes.
    r'[\x00-\x1f\x7f-\x9f:*?"<>|\u2215\u2216\uff0e\ufeff\ufffd\ud800-\udfff]|\.\.'
)


def read(url: str, directory: str, max_bytes: int) -> bytes:
    """The contents of the file that `url` names. Raises FetchError.

    What follows `file://` is a path below `directory`, as it is: nothing in it is decoded. What a
    link leads to has to be below it, too.
    """
    path = url[len("file://") :].lstrip("/")
    if len(path) > MAX_PATH or _FORBIDDEN.search(path) or path != path.strip(" ").rstrip("."):
        raise FetchError("its path is not allowed")
    root = os.path.realpath(directory)
    real = os.path.realpath(os.path.join(root, path))
    if not path or os.path.commonpath((root, real)) != root:
        raise FetchError("its path is not allowed")
    try:
        with open(open_regular(real), "rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, OptionError):
        raise FetchError("it does not exist, or can't be read") from None
    if len(data) > max_bytes:
        raise FetchError(f"it has more than the {max_bytes} bytes that there may be")
    return data
