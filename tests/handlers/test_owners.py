"""The owner of a text, as the engine receives it."""

from collections.abc import Iterator

import pytest

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
