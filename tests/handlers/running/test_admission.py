"""The terms of a request, by its API key."""

from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.handlers.http import current
from specllama.handlers.http.api_keys import ApiKey, KeyRing
from specllama.handlers.options.keys_file import digest
from specllama.handlers.running.admission import current_terms


def terms(keys: KeyRing, secret: str = "") -> Terms:
    scope: dict[str, Any] = {
        "state": {"runtime": SimpleNamespace(api_keys=keys)},
        "headers": [(b"authorization", f"Bearer {secret}".encode())],
        "query_string": b"",
    }

    def within() -> Terms:
        current._scope.set(scope)
        return current_terms()

    return copy_context().run(within)


def test_without_keys_there_are_no_terms() -> None:
    assert terms(KeyRing()) is NO_TERMS


def test_the_terms_are_those_of_the_key() -> None:
    key = ApiKey(
        name="alice", id="key:alice", digest=digest("sk"), weight=2.5, priority=-3, cache_mib=7
    )
    given = terms(KeyRing([key]), "sk")
    assert given == Terms(weight=2.5, priority=-3, key_name="alice", cache_bytes=7 << 20)
    assert terms(KeyRing([key]), "other") is NO_TERMS


def test_a_request_keeps_its_key() -> None:
    ring = KeyRing([ApiKey(name="alice", id="key:alice", digest=digest("sk"))])
    scope: dict[str, Any] = {
        "state": {"runtime": SimpleNamespace(api_keys=ring)},
        "headers": [(b"x-api-key", b"sk")],
        "query_string": b"",
    }

    def within() -> None:
        current._scope.set(scope)
        assert current_terms().key_name == "alice"
        ring.replace([ApiKey(name="bob", id="key:bob", digest=digest("other"))])
        assert current_terms().key_name == "alice"

    copy_context().run(within)


def test_only_digests_are_kept_and_compared() -> None:
    key = ApiKey(name="alice", id="key:alice", digest=digest("sk-secret"))
    ring = KeyRing([key])
    assert ring.find(b"sk-secret") is key
    assert ring.find(b"sk-secre") is ring.find(b"") is ring.find(key.digest) is None
    assert "sk-secret" not in repr(vars(ring))


def test_an_expired_key_is_no_key() -> None:
    ring = KeyRing([ApiKey(name="a", id="a", digest=digest("sk"), expires=0.0)])
    assert ring
    assert ring.find(b"sk") is None
