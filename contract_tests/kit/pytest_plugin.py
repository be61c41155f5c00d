"""Fixtures for anybody's own tests of a server: `contract` and `contract_client`.

    def test_my_server(contract, contract_client):
        response = contract_client.post("/tokenize", json={"content": "Hello"})
        assert contract.check(response)["tokens"]

pytest finds the plugin by itself. Until a test asks for one of them, nothing is imported, and an
option `--base-url` that another plugin or a `conftest.py` has stays theirs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

OPTIONS = {
    "--base-url": "the server that is tested",
    "--api-key": "its API key, if it wants one",
}


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> Generator[None]:
    """Behind all plugins and `conftest.py`: only what nobody else has is added."""
    yield
    known = parser.parse_known_args(args)
    for option, text in OPTIONS.items():
        if not hasattr(known, _name(option)):
            parser.getgroup("specllama-contract").addoption(option, help=text)


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


class Contract:
    """Holds answers against the description."""

    def check(self, response: httpx.Response, status: int = 200) -> Any:
        """The document in the response; of a stream, the list of its events' documents.

        Fails unless its status is `status`, and status, headers, content type and body are as the
        description says of the operation at the request's path.
        """
        __tracebackhide__ = True
        from contract_tests.kit import contract

        return contract.check(response, status)


@pytest.fixture(scope="session")
def contract() -> Contract:
    """Holds answers against the description: `contract.check(response, status=200)`."""
    return Contract()


@pytest.fixture(scope="session")
def contract_client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """An httpx client of the server at `--base-url`. Without one, the test is skipped."""
    import httpx

    from contract_tests.kit.server import SECONDS

    url = request.config.getoption("base_url", None)
    if not url:
        pytest.skip("it needs a server: pass --base-url")
    key = request.config.getoption("api_key", None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=SECONDS) as client:
        yield client
