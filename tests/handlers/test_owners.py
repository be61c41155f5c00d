"""The owner of a text, as the engine receives it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.engine.wire.stats import Stats
from specllama.handlers.http.api_keys import ApiKey
from specllama.handlers.options.keys_file import Access
from tests.support.paper_server import Server, serve

pytestmark = pytest.mark.slow


def asked(server: Server, key: str) -> tuple[int, bool]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    server.http.post("/completion", json={"prompt": "x"}, headers=headers).raise_for_status()
    return server.engine.owners[-1]


@pytest.fixture(params=[False, True])
def locked(request: pytest.FixtureRequest) -> Iterator[tuple[Server, bool]]:
    for server in serve(api_key=("one", "other"), cache_per_key=request.param):
        yield server, request.param


def test_each_key_has_a_number_of_its_own(locked: tuple[Server, bool]) -> None:
    server, is_private = locked
    one, other = asked(server, "one"), asked(server, "other")
    assert asked(server, "one") == one
    assert 0 != one[0] != other[0] != 0
    assert one[1] == other[1] == is_private


def test_without_keys_there_is_one_owner(server: Server) -> None:
    assert asked(server, "") == (0, False)
    assert asked(server, "any") == (0, False)


NAMED = """
[keys.plain]
key = "sk-plain"
[keys.own]
key = "sk-own"
cache = "own"
[keys.shared]
key = "sk-shared"
cache = "shared"
"""


@pytest.fixture(params=[False, True])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, bool]]:
    (file := tmp_path / "keys.toml").write_text(NAMED, "utf-8")
    for server in serve(keys_file=str(file), api_key=("root",), cache_per_key=request.param):
        yield server, request.param


def test_a_key_may_share_its_texts_or_not(named: tuple[Server, bool]) -> None:
    server, is_private = named
    assert asked(server, "sk-own")[1]
    assert not asked(server, "sk-shared")[1]
    assert asked(server, "sk-plain")[1] == asked(server, "root")[1] == is_private
    assert len({asked(server, key)[0] for key in ("sk-own", "sk-shared", "sk-plain", "root")}) == 4


def test_a_new_secret_has_the_same_owner(named: tuple[Server, bool], tmp_path: Path) -> None:
    server, _ = named
    before = asked(server, "sk-own")
    (tmp_path / "keys.toml").write_text(NAMED.replace("sk-own", "sk-new-own"), "utf-8")
    server.runtime.keys.look_again()
    assert asked(server, "sk-new-own") == before
    response = server.http.post("/completion", headers={"Authorization": "Bearer sk-own"})
    assert response.status_code == 401


def a_key(secret: str, *access: Access) -> ApiKey:
    digest = hashlib.sha256(secret.encode()).digest()
    return ApiKey(name=secret, id=secret, digest=digest, access=frozenset(access))


def shown(server: Server, key: str) -> tuple[str, int, float]:
    """Returns the reason in the slot, the place beside it, and the count of `key` in the
    metrics."""
    headers = {"Authorization": f"Bearer {key}"}
    slot = server.checked(server.http.get("/slots", headers=headers), "/slots").json()[1]
    metrics = server.http.get("/metrics", headers=headers).raise_for_status().text
    name = 'specllama_prompt_tokens_computed_total{reason="key"} '
    (count,) = [line.removeprefix(name) for line in metrics.splitlines() if line.startswith(name)]
    return slot["cache_miss_reason"], slot["cache_miss_at"], float(count)


def test_only_administrators_beside_clients_see_what_is_cached_for_other_keys() -> None:
    for server in serve(api_key=("one", "other"), metrics=True):
        server.engine.missed = "key"
        server.engine.counts = Stats(n_prompt_missed={"key": 7})
        assert shown(server, "one") == ("new", 4, 0), "all keys are equal"
        server.runtime.api_keys.replace([a_key("one", "admin", "read"), a_key("other", "read")])
        assert shown(server, "one") == ("key", 4, 7)
        assert shown(server, "other") == ("new", 4, 0)


def test_other_reasons_are_shown_to_everyone(server: Server) -> None:
    server.engine.missed = "edited"
    assert server.get("/slots").json()[1]["cache_miss_reason"] == "edited"
