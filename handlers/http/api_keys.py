"""API keys: who may use the operations that are not public.

The keys are those of the running server (its `runtime` in the ASGI state); without any, all is
open.
"""

import hashlib
import hmac

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.types import Scope

from specllama.handlers.http.current import current_scope


def require_key(scope: Scope) -> None:
    """Hold a request of a public operation to what others want. Raises HTTPException (401)."""
    if not is_known(scope):
        raise HTTPException(401)


def is_api_key(candidate: str, keys: tuple[bytes, ...]) -> bool:
    """Compares with every key, so that the time reveals nothing about any of them."""
    given = candidate.encode()
    found = False
    for key in keys:
        found |= hmac.compare_digest(given, key)
    return found


def key_of(scope: Scope) -> bytes | None:
    """The server's key that a request brings along: as a bearer's token, as `x-api-key`, or as
    Google's clients have it, in a header of their own or as `key` in the query."""
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
    """What may be a key in a field of a request's head; nothing in most of them."""
    if name == b"authorization":
        kind, _, token = value.partition(b" ")
        return token.strip() if kind.lower() == b"bearer" else b""
    return value if name in (b"x-api-key", b"x-goog-api-key") else b""


def is_known(scope: Scope) -> bool:
    """True if the request brings a key along, or needs none."""
    return not scope["state"]["runtime"].api_keys or key_of(scope) is not None


def owner_of(scope: Scope) -> str:
    """Who brings the request's key, without telling the key; "" without one."""
    key = key_of(scope)
    return "" if key is None else hashlib.sha256(key).hexdigest()


def current_key() -> bytes:
    """The valid API key of the current request; nothing on a server that has none."""
    return key_of(current_scope()) or b""


def current_owner() -> int:
    """A number for the API key of the current request; 0 on a server that has none."""
    key = current_key()
    return int.from_bytes(hashlib.sha256(key).digest()[:6]) if key else 0
