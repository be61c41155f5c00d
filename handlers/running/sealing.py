"""Seals data that clients keep for the server and send back: only this server can read them, and a
change is noticed.

A sealed text is URL-safe base64 of a version byte, an authentication code (HMAC-SHA256), a nonce,
and the data, compressed by zlib and encrypted (encrypt-then-MAC). The cipher adds the output of
SHAKE256 for the key and the nonce, a keyed sponge (FIPS 202). The code covers the kind of the data
as well, so that data of one kind doesn't pass for another.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import secrets
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from specllama.engine.host import user_cache
from specllama.engine.options import OptionError
from specllama.engine.options.files import read_text, reason
from specllama.engine.options.values import quote

log = logging.getLogger(__name__)

MAX_BYTES: Final = 64 << 20
"""The most bytes of data that a text may have."""
KEY_BYTES: Final = 32
MIN_SECRET: Final = 32
"""The least number of characters of a file with a secret."""
_MAX_SECRET: Final = 1 << 16

_VERSION: Final = b"\x01"
_CODE_BYTES: Final = hashlib.sha256().digest_size
_NONCE_BYTES: Final = 16
_HEAD_BYTES: Final = len(_VERSION) + _CODE_BYTES


class Seal:
    """Seals data, and opens what has been sealed with the same key. Both methods take about 10 ms
    for each megabyte, so large data belongs into a thread."""

    def __init__(self, key: bytes) -> None:
        self._for_codes = hmac.digest(key, b"authenticate", "sha256")
        self._for_texts = hmac.digest(key, b"encrypt", "sha256")

    def seal(self, kind: str, payload: bytes) -> str:
        """Returns the sealed text of `payload`. Raises ValueError for more than `MAX_BYTES`."""
        if len(payload) > MAX_BYTES:
            raise ValueError(f"{len(payload)} bytes are too many to be sealed")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        body = nonce + self._crypted(nonce, zlib.compress(payload))
        return base64.urlsafe_b64encode(_VERSION + self._code(kind, body) + body).decode()

    def open(self, kind: str, token: str, most: int = MAX_BYTES) -> bytes | None:
        """Returns the data of a sealed text. Returns None if this key hasn't sealed it, or if it
        has another kind, or more than `most` bytes of data."""
        try:
            raw = base64.b64decode(token, altchars=b"-_", validate=True)
        except ValueError:  # also for characters outside of ASCII
            return None
        code, body = raw[len(_VERSION) : _HEAD_BYTES], raw[_HEAD_BYTES:]
        if raw[: len(_VERSION)] != _VERSION or not hmac.compare_digest(
            code, self._code(kind, body)
        ):
            return None
        nonce, text = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
        reader = zlib.decompressobj()
        try:
            payload = reader.decompress(self._crypted(nonce, text), max(most, 0) + 1)
        except zlib.error:
            return None
        return payload if len(payload) <= most and reader.eof else None

    def _crypted(self, nonce: bytes, text: bytes) -> bytes:
        """Returns `text` encrypted, or an encrypted text decrypted."""
        stream = hashlib.shake_256(self._for_texts + nonce).digest(len(text))
        mixed = int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")
        return mixed.to_bytes(len(text), "big")

    def _code(self, kind: str, body: bytes) -> bytes:
        code = hmac.new(self._for_codes, _VERSION, hashlib.sha256)
        name = kind.encode()
        code.update(len(name).to_bytes(4, "big") + name)
        code.update(body)
        return code.digest()


class Sealing:
    """The seal of a server, with the key that the servers with the same store share."""

    def __init__(
        self,
        own: Callable[[], bytes],
        share: Callable[[bytes], Awaitable[bytes]] | None = None,
    ) -> None:
        """`own` returns this server's key. `share` gives it to the store, and returns the key that
        the store has then: the first that a server has given. Without `share`, the own key is
        used."""
        self._own = own
        self._share = share
        self._seal: Seal | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> Seal:
        """Returns the seal. Raises the errors of `share` until it has succeeded once."""
        async with self._lock:
            if self._seal is None:
                own = self._own()
                self._seal = Seal(own if self._share is None else await self._share(own))
            return self._seal


def key_of_file(path: str) -> bytes:
    """Returns the key of the secret in a file, which is created with a random secret if it doesn't
    exist. Raises OptionError."""
    try:
        _create(Path(path))
    except OSError as error:
        raise OptionError(f"cannot create {quote(path)}: {reason(error)}") from None
    secret = read_text(path, _MAX_SECRET).strip()
    if len(secret) < MIN_SECRET:
        raise OptionError(f"{quote(path)} has fewer than {MIN_SECRET} characters")
    return hashlib.sha256(secret.encode()).digest()


def key_of_user(environ: Mapping[str, str]) -> bytes:
    """Returns the key of the secret in the user's cache. If that can't be used, the reason is
    logged, and the key is random: data that is sealed now can't be opened after a restart."""
    try:
        path = user_cache(environ) / "responses.key"
        path.parent.mkdir(parents=True, exist_ok=True)
        return key_of_file(str(path))
    except (OSError, RuntimeError, OptionError) as error:
        log.warning("reasoning that clients keep can't be read after a restart: %s", error)
        return secrets.token_bytes(KEY_BYTES)


def _create(path: Path) -> None:
    """Creates a file with a secret that only this user may read, unless it exists. Other processes
    see it complete or not at all."""
    if path.exists():
        return
    descriptor, part = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".part", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
        with suppress(FileExistsError):  # another process has created it meanwhile
            os.link(part, path)
    finally:
        os.unlink(part)
