"""Options with the servers' addresses. This file runs in a client's environment, which has nothing
else."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--url", required=True, help="a server that generates text")
    parser.addoption("--embeddings-url", required=True, help="a server with --embeddings")
    parser.addoption(
        "--recorded",
        action="store_true",
        help="send each case to a separate path",
    )


def _address(request: pytest.FixtureRequest, option: str) -> str:
    url: str = request.config.getoption(option)
    case = request.node.originalname.removeprefix("test_")
    return f"{url}/{case}" if request.config.getoption("--recorded") else url


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The address of the server, without an API's prefix."""
    return _address(request, "--url")


@pytest.fixture
def embeddings_url(request: pytest.FixtureRequest) -> str:
    """The address of the server for embeddings."""
    return _address(request, "--embeddings-url")
