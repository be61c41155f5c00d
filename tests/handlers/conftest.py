"""A server whose engine is made of paper."""

from collections.abc import Iterator

import pytest

from tests.support.paper_server import Server, serve


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    yield from serve(alias="b,a")


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.engine.generations.clear()
    shared_server.engine.busy = False
    return shared_server
