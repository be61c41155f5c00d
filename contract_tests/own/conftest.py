"""Fixtures of the tests that need this repository's own server."""

import pytest

from tools.models.zoo import Zoo, write_zoo

# Failed assertions in these modules shall show their values.
pytest.register_assert_rewrite("contract_tests.own.launching", "contract_tests.own.servers")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="replace examples that differ by real answers: test_answer_examples.py",
    )


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Small models of all kinds."""
    return write_zoo(tmp_path_factory.mktemp("zoo"))
