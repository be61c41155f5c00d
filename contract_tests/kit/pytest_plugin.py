"""Fixtures for tests of your own server: `contract` and `contract_client`.

    def test_my_server(contract, contract_client):
        response = contract_client.post("/tokenize", json={"content": "Hello"})
        assert contract.check(response)["tokens"]

pytest finds the plugin by itself. Nothing is imported until a test uses one of the fixtures. If
another plugin or a `conftest.py` has an option `--base-url`, that option is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

OPTIONS = {
    "--base-url": "the server that is tested",
    "--api-key": "the server's API key, if it needs one",
}


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> Generator[None]:
    """Adds the options that no other plugin or `conftest.py` has; runs after all of them."""
    yield
    known = parser.parse_known_args(args)
    for option, text in OPTIONS.items():
        if not hasattr(known, _name(option)):
            parser.getgroup("specllama-contract").addoption(option, help=text)


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


class Contract:
    """Checks answers against the description."""

    def check(self, response: httpx.Response, status: int = 200) -> Any:
        """Returns the document in the response; for a stream, the list of its events' documents.

        Fails unless its status is `status`, and status, headers, content type and body match the
        description of the operation at the request's path.
        """
        __tracebackhide__ = True
        from contract_tests.kit import contract

        return contract.check(response, status)


@pytest.fixture(scope="session")
def contract() -> Contract:
    """Checks answers against the description: `contract.check(response, status=200)`."""
    return Contract()


@pytest.fixture(scope="session")
def contract_client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Returns an httpx client of the server at `--base-url`. Skips the test without that option."""
    import httpx

    from contract_tests.kit.server import SECONDS

    url = request.config.getoption("base_url", None)
    if not url:
        pytest.skip("this test needs a server: pass --base-url")
    key = request.config.getoption("api_key", None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=SECONDS) as client:
        yield client
