"""Deployments on Ray Serve. These tests take minutes and need Ray: `nox -s ray` runs them."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from contract_tests.deployment.launching import Cluster

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ray", action="store_true", help="the tests of deployments on Ray Serve (minutes)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = ""
    if find_spec("ray") is None:
        reason = "Ray is not installed: pip install 'specllama[ray]'"
    elif not config.getoption("--ray", default=False):
        reason = "nox -s ray runs the tests of deployments"
    for item in items if reason else ():
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of a module's tests."""
    return tmp_path_factory.mktemp("deployment")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[Cluster]:
    """A cluster with two nodes of two CPUs each, on this machine."""
    with Cluster.start(directory, cpus=2, nodes=2) as running:
        yield running
