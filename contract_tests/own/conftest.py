"""Fixtures of the tests that need this repository's own server."""

import pytest

from tools.models.zoo import Zoo, write_zoo

# A failing assertion in it has to show its values.
pytest.register_assert_rewrite("contract_tests.own.launching")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Small models of all kinds."""
    return write_zoo(tmp_path_factory.mktemp("zoo"))
