"""API keys, which requests need for all operations except the public ones.

The keys are those of the running server (`runtime` in the ASGI state). A server without keys is
open to every client.
"""

import hashlib
import hmac

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.types import Scope

from specllama.handlers.http.current import current_scope


def require_key(scope: Scope) -> None:
    """Raises HTTPException (401) if the request has no valid API key. For those parts of a public
    operation that need one."""
    if not is_known(scope):
        raise HTTPException(401)


def is_api_key(candidate: str, keys: tuple[bytes, ...]) -> bool:
    """Whether `candidate` is one of the `keys`. Compares it with each key, so that the time reveals
    nothing about them."""
    given = candidate.encode()
    found = False
    for key in keys:
        found |= hmac.compare_digest(given, key)
    return found


def key_of(scope: Scope) -> bytes | None:
    """Returns the valid API key in a request; None without one. It is the bearer token, or in
    `x-api-key`, or, for Google's clients, in `x-goog-api-key` or in `key` in the query."""
    keys: tuple[bytes, ...] = scope["state"]["runtime"].api_keys
    if not keys:
        return None
    candidates = [_candidate(name, value) for name, value in scope["headers"]]
    if b"key=" in scope["query_string"]:
        candidates += [each.encode() for each in QueryParams(scope["query_string"]).getlist("key")]
    found = None
    for candidate in filter(None, candidates):
        for key in keys:
            if hmac.compare_digest(candidate, key):
                found = key
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
    """Returns the digest of the request's API key, which doesn't reveal the key; "" without one."""
    key = key_of(scope)
    return "" if key is None else hashlib.sha256(key).hexdigest()


def current_key() -> bytes:
    """Returns the valid API key of the current request; empty on a server without keys."""
    return key_of(current_scope()) or b""


def current_owner() -> int:
    """Returns a number for the API key of the current request; 0 on a server without keys."""
    key = current_key()
    return int.from_bytes(hashlib.sha256(key).digest()[:6]) if key else 0
