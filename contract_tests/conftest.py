"""The kit's options and fixtures, for the tests of the kit and of this repository's server."""

pytest_plugins = ("contract_tests.kit.plugin",)
