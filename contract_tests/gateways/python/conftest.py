"""The two servers behind a gateway. This file runs in a gateway's environment, which has nothing
of the server."""

import pytest

from contract_tests.gateways.python.place import Place


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first", required=True, help="a server")
    parser.addoption("--second", required=True, help="another server of the same model")
    parser.addoption("--key", required=True, help="the API key of both")


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> tuple[Place, Place]:
    key = request.config.getoption("--key")
    first, second = (Place(request.config.getoption(name), key) for name in ("--first", "--second"))
    return first, second
