"""API keys: what a request with a key may do, and which key a request has.

The keys are those of the running server (`runtime` in the ASGI state). A server without keys is
open to every client.
"""

import fnmatch
import functools
import hashlib
import re
import time
from collections.abc import Iterable
from typing import Literal

import msgspec
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.types import Scope

from specllama.engine.errors import EngineError
from specllama.engine.options.declaration import FIRST_PRIORITY
from specllama.handlers.http.current import current_scope
from specllama.handlers.options.keys_file import ACCESS, Access, KeyTable, digest

ALL_ACCESS: frozenset[Access] = frozenset(ACCESS)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and what its requests may do. The key itself is not stored, only its SHA-256.

    `id` identifies the owner of responses, streams and cached texts. `models` None allows every
    model; otherwise it has names and aliases, in which `*` stands for any characters. `priority` is
    the default of its requests, `best_priority` the lowest number that they may choose. A limit of
    0 is no limit. `cache_mib` limits its cached texts. `expires` is in seconds since 1970.
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

    @classmethod
    def of_table(cls, name: str, table: KeyTable) -> "ApiKey":
        """Returns the key of a table in the keys file. Its owned things depend on the name alone,
        so they stay when the key itself is replaced."""
        return cls(
            name=name,
            id=f"key:{name}",
            digest=table.digest,
            models=None if table.models is None else frozenset(table.models),
            access=frozenset(table.operations),
            weight=table.weight,
            priority=table.priority,
            best_priority=table.lowest_priority,
            concurrency=table.concurrency,
            requests_per_minute=table.requests_per_minute,
            tokens_per_minute=table.tokens_per_minute,
            tokens_per_day=table.tokens_per_day,
            cache=table.cache,
            cache_mib=table.cache_mib,
            expires=table.expires_at,
        )

    @property
    def owner(self) -> int:
        """A number for the engine that identifies the owner of a text."""
        return int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:6])

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires

    def may_use(self, names: Iterable[str]) -> bool:
        """True if the key allows a model with these names."""
        if self.models is None:
            return True
        patterns = [_pattern(each) for each in self.models]
        return any(pattern.fullmatch(name) for name in names for pattern in patterns)


@functools.lru_cache(maxsize=10_000)
def _pattern(text: str) -> re.Pattern[str]:
    """Returns a pattern in which only `*` has a special meaning."""
    return re.compile(fnmatch.translate(re.sub(r"([\[?])", r"[\1]", text)))


class KeyRing:
    """The valid keys of a server. It is true if the server needs a key, even if no key is valid
    (a keys file without keys)."""

    def __init__(self, keys: Iterable[ApiKey] = (), *, is_needed: bool = False) -> None:
        self._is_needed = is_needed
        self._by_digest: dict[bytes, ApiKey] = {}
        self.replace(keys)

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> "KeyRing":
        """Returns the keys of `--api-key` and `--api-key-file`."""
        return cls(administrators(secrets))

    def __bool__(self) -> bool:
        return self._is_needed or bool(self._by_digest)

    @property
    def keys(self) -> list[ApiKey]:
        return [*self._by_digest.values()]

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Replaces all keys at once. Running requests keep the keys that they had at their
        start."""
        self._by_digest = {key.digest: key for key in keys}

    @property
    def has_clients(self) -> bool:
        """True if a key has no administrator's rights."""
        return any("admin" not in key.access for key in self._by_digest.values())

    def find(self, secret: bytes) -> ApiKey | None:
        """Returns the key; None if it isn't valid. The time reveals nothing about other keys: only
        digests are compared."""
        key = self._by_digest.get(hashlib.sha256(secret).digest())
        return None if key is None or key.has_expired else key


def administrators(secrets: Iterable[str]) -> list[ApiKey]:
    """Returns the keys of `--api-key` and `--api-key-file`, which may do everything: `api-key-1`,
    `api-key-2`, ..."""
    keys: list[ApiKey] = []
    for number, secret in enumerate(secrets, 1):
        hashed = digest(secret)
        name, best = f"api-key-{number}", FIRST_PRIORITY
        keys.append(ApiKey(name=name, id=hashed.hex(), digest=hashed, best_priority=best))
    return keys


_STATE = "api_key"
"""The entry in the state of the ASGI scope that has a request's key."""


def require_key(scope: Scope) -> None:
    """Raises HTTPException (401) if the request has no valid API key. For those parts of a public
    operation that need one."""
    if not is_known(scope):
        raise HTTPException(401)


def key_of(scope: Scope) -> ApiKey | None:
    """Returns the valid API key in a request; None without one. It is the bearer token, or in
    `x-api-key`, or, for Google's clients, in `x-goog-api-key` or in `key` in the query.

    The request keeps this key to its end, even if it expires or the keys file changes meanwhile."""
    state = scope["state"]
    keys: KeyRing = state["runtime"].api_keys
    if not keys:
        return None
    if _STATE not in state:
        state[_STATE] = _find(keys, scope)
    found: ApiKey | None = state[_STATE]
    return found


def _find(keys: KeyRing, scope: Scope) -> ApiKey | None:
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


def refused(key: ApiKey, access: Access) -> str:
    """Returns the message of the error for a request with a key that doesn't allow `access`."""
    allowed = ", ".join(each for each in ACCESS if each in key.access) or "nothing"
    return f"the key {key.name!r} may not do this: it needs '{access}', and the key has {allowed}"


def is_known(scope: Scope) -> bool:
    """True if the request has a valid API key, or the server needs no key."""
    return not scope["state"]["runtime"].api_keys or key_of(scope) is not None


def owner_of(scope: Scope) -> str:
    """Returns the `id` of the request's API key; "" without one."""
    key = key_of(scope)
    return "" if key is None else key.id


def require_access(access: Access) -> None:
    """Raises EngineError (permission_error) if the key of the current request doesn't allow
    `access`. For those parts of an operation that need more than the operation itself."""
    key = current_key()
    if key is not None and access not in key.access:
        raise EngineError.of("permission_error", refused(key, access))


def current_key() -> ApiKey | None:
    """Returns the valid API key of the current request; None on a server without keys."""
    return key_of(current_scope())


def current_owner() -> str:
    """Returns the `id` of the current request's API key; "" on a server without keys."""
    return owner_of(current_scope())


def sees_other_keys() -> bool:
    """True if the answer to the current request may reveal something about texts of other keys: its
    key is an administrator's, and other keys are not. If all keys are equal, they are clients."""
    scope = current_scope()
    keys: KeyRing = scope["state"]["runtime"].api_keys
    key = key_of(scope)
    return key is not None and "admin" in key.access and keys.has_clients
