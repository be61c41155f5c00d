"""The kit's options and fixtures, for the tests of the kit and of this repository's server."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract_tests.kit.server import Launcher

pytest_plugins = ("contract_tests.kit.plugin",)
collect_ignore = ["clients/python", "gateways/python", "sdk/drivers"]
"""They run in other environments, see `contract_tests.clients`."""


def pytest_contract_launcher() -> "Launcher":
    """The servers that the kit tests are this repository's."""
    from contract_tests.own import (
        servers,
    )  # after the plugin: rewrites assertions

    return servers
