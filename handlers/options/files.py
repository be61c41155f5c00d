"""Reads and checks the files in options of the server, before the server starts.

Every function raises `OptionError` with one line that names the file.
"""

import os
import ssl
import tomllib

from specllama.engine.options.files import open_regular, read_text, reason
from specllama.engine.options.values import OptionError, quote


def api_keys(path: str) -> list[str]:
    """Returns the keys in a file, which has one per line. Empty lines and lines that begin with #
    are skipped. Raises `OptionError` for a TOML file with tables: each of its lines would be a
    key."""
    text = read_text(path)
    if _has_tables(text):
        raise OptionError(f"{quote(path)} is a TOML file; this file has one key per line")
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        # Without keys, the server would be open to everyone in spite of the option.
        raise OptionError(f"{quote(path)} contains no key")
    return keys


def _has_tables(text: str) -> bool:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return any(isinstance(value, dict | list) for value in found.values())


def check_tls(certificate: str, key: str) -> None:
    """Checks that the two PEM files can be read and belong together."""
    for path in (certificate, key):
        os.close(open_regular(path))

    def no_passphrase() -> str:
        raise OptionError(f"{quote(key)} is protected by a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_passphrase)
    except (OSError, ValueError):  # ssl.SSLError, an OSError, has no useful message
        message = f"{quote(certificate)} and {quote(key)} are not a PEM certificate and its key"
        raise OptionError(message) from None


def check_writable(path: str) -> None:
    """Checks that text can be appended to `path`; creates the file."""
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot write to {quote(path)}: {reason(error)}") from None
