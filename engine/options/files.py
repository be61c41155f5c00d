"""The files that options name: read and checked before a model is loaded.

Every function raises `OptionError` with one line that names the file.
"""

import os
import ssl
import stat

from engine.formats.gguf_names import part
from engine.options.values import OptionError, quote

_GGUF_MAGIC = b"GGUF"
_TEXT_MAX = 16 << 20  # bytes; whoever names a larger text file means another file


def open_regular(path: str) -> int:
    """A descriptor of a regular file. Other kinds could block or never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot open {quote(path)}: {_reason(error)}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise OptionError(f"{quote(path)} is {kind}")
    return descriptor


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_gguf(path: str) -> None:
    """That `path` is a file which begins like a GGUF file."""
    with open(open_regular(path), "rb") as file:
        try:
            magic = file.read(len(_GGUF_MAGIC))
        except OSError as error:
            raise OptionError(f"cannot read {quote(path)}: {_reason(error)}") from None
    if not magic:
        raise OptionError(f"{quote(path)} is empty")
    if magic != _GGUF_MAGIC:
        raise OptionError(f"{quote(path)} is not a GGUF file")


def check_model(path: str) -> None:
    """That `path` is a model's GGUF file, or the first of those of a split model, which must all
    be there."""
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
            raise OptionError(f"of a model in {split.count} files, {error}") from None


def check_directory(path: str) -> None:
    """That files can be made in the directory `path`."""
    _check_directory(path, os.R_OK | os.W_OK | os.X_OK, "reading and writing")


def check_readable_directory(path: str) -> None:
    """That the files in the directory `path` can be found."""
    _check_directory(path, os.R_OK | os.X_OK, "reading")


def _check_directory(path: str, access: int, named: str) -> None:
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise OptionError(f"{quote(path)} is not a directory")
        if not os.access(path, access):
            raise OptionError(f"{quote(path)}: {named} is not permitted")
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot use {quote(path)}: {_reason(error)}") from None


def read_text(path: str, most: int = _TEXT_MAX) -> str:
    """The contents of a UTF-8 text file of `most` bytes at the most."""
    with open(open_regular(path), "rb") as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise OptionError(f"cannot read {quote(path)}: {_reason(error)}") from None
    if len(data) > most:
        raise OptionError(f"{quote(path)} is larger than {most >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError(f"{quote(path)} is not a UTF-8 text") from None


def api_keys(path: str) -> list[str]:
    """The keys in a file: one on a line; empty lines and those beginning with # don't count."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        # Serving everybody is not what somebody who names a key file wants.
        raise OptionError(f"{quote(path)} holds no key")
    return keys


def check_tls(certificate: str, key: str) -> None:
    """That the two PEM files can be read and belong together."""
    for path in (certificate, key):
        os.close(open_regular(path))

    def no_passphrase() -> str:
        raise OptionError(f"{quote(key)} is protected by a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_passphrase)
    except (OSError, ValueError):  # ssl.SSLError, whose texts explain nothing, is an OSError
        message = f"{quote(certificate)} and {quote(key)} are no PEM certificate and its key"
        raise OptionError(message) from None


def check_writable(path: str) -> None:
    """That text can be appended to `path`; creates the file."""
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot write to {quote(path)}: {_reason(error)}") from None
