"""Options and fixtures that choose the server to test.

pytest contract_tests                                        # a server that the tests start
pytest contract_tests --base-url http://host:8080 --api-key KEY      # a running server

A repository implements the hook `pytest_contract_launcher` to let the tests start its servers.
"""

import pytest

# Failed assertions in these modules shall show their values, as in tests. pytest has to be informed
# before they are imported, which `fixtures` does.
for _module in (
    "bodies",
    "chat",
    "checks",
    "contract",
    "events",
    "provocations",
    "provocations_of_bodies",
    "provocations_of_conversations",
    "provocations_of_ollama",
    "provocations_of_routers",
    "routers",
    "server",
    "situations",
):
    pytest.register_assert_rewrite(f"contract_tests.kit.{_module}")

pytest_plugins = ("contract_tests.kit.fixtures",)
