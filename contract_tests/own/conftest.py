"""Fixtures of the tests that need this repository's own server."""

import pytest

from tools.models.zoo import Zoo, write_zoo

# A failing assertion in it has to show its values.
pytest.register_assert_rewrite("contract_tests.own.launching")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Small models of all kinds."""
    return write_zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a router that knows no model of whoever runs the tests."""
    return {"HF_HUB_CACHE": str(tmp_path_factory.mktemp("hub"))}
