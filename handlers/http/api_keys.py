"""API keys: what a request with a key may do, and which key a request has.

The keys are those of the running server (`runtime` in the ASGI state). A server without keys is
open to every client.
"""

import hashlib
import time
from collections.abc import Iterable
from typing import Literal

import msgspec
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.types import Scope

from specllama.handlers.http.current import current_scope

Access = Literal["generate", "embed", "read", "admin"]
"""The groups of operations; `x-access` names the group of an operation in the description."""
ALL_ACCESS: frozenset[Access] = frozenset({"generate", "embed", "read", "admin"})


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and what its requests may do. The key itself is not stored, only its SHA-256.

    `id` identifies the owner of responses, streams and cached texts. `models` None allows every
    model. `priority` is the default of its requests, `best_priority` the lowest number that they
    may choose. A limit of 0 is no limit. `cache_mib` limits its cached texts. `expires` is in
    seconds since 1970.
    """

    name: str
    id: str
    digest: bytes
    models: frozenset[str] | None = None
    access: frozenset[Access] = ALL_ACCESS
    weight: float = 1.0
    priority: int = 0
    best_priority: int = 0
    concurrency: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0
    cache: Literal["own", "shared"] | None = None
    cache_mib: int = 0
    expires: float | None = None

    @property
    def owner(self) -> int:
        """A number for the engine that identifies the owner of a text."""
        return int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:6])

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires


class KeyRing:
    """The valid keys of a server; empty for a server that needs no key."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._by_digest = {key.digest: key for key in keys}

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> "KeyRing":
        """Returns the keys of `--api-key` and `--api-key-file`: administrators named `api-key-1`,
        `api-key-2`, ..."""
        keys: list[ApiKey] = []
        for number, secret in enumerate(secrets, 1):
            digest = hashlib.sha256(secret.encode()).digest()
            keys.append(ApiKey(name=f"api-key-{number}", id=digest.hex(), digest=digest))
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def find(self, secret: bytes) -> ApiKey | None:
        """Returns the key; None if it isn't valid. The time reveals nothing about other keys: only
        digests are compared."""
        key = self._by_digest.get(hashlib.sha256(secret).digest())
        return None if key is None or key.has_expired else key


def require_key(scope: Scope) -> None:
    """Raises HTTPException (401) if the request has no valid API key. For those parts of a public
    operation that need one."""
    if not is_known(scope):
        raise HTTPException(401)


def key_of(scope: Scope) -> ApiKey | None:
    """Returns the valid API key in a request; None without one. It is the bearer token, or in
    `x-api-key`, or, for Google's clients, in `x-goog-api-key` or in `key` in the query."""
    keys: KeyRing = scope["state"]["runtime"].api_keys
    if not keys:
        return None
    candidates = [_candidate(name, value) for name, value in scope["headers"]]
    if b"key=" in scope["query_string"]:
        candidates += [each.encode() for each in QueryParams(scope["query_string"]).getlist("key")]
    found = None
    for candidate in filter(None, candidates):
        found = keys.find(candidate) or found
    return found


def _candidate(name: bytes, value: bytes) -> bytes:
    """Returns the API key in a header of a request; empty for other headers."""
    if name == b"authorization":
        kind, _, token = value.partition(b" ")
        return token.strip() if kind.lower() == b"bearer" else b""
    return value if name in (b"x-api-key", b"x-goog-api-key") else b""


def is_known(scope: Scope) -> bool:
    """True if the request has a valid API key, or the server needs no key."""
    return not scope["state"]["runtime"].api_keys or key_of(scope) is not None


def owner_of(scope: Scope) -> str:
    """Returns the `id` of the request's API key; "" without one."""
    key = key_of(scope)
    return "" if key is None else key.id


def current_key() -> ApiKey | None:
    """Returns the valid API key of the current request; None on a server without keys."""
    return key_of(current_scope())


def current_owner() -> str:
    """Returns the `id` of the current request's API key; "" on a server without keys."""
    return owner_of(current_scope())
