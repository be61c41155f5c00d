"""Options and fixtures: which server is tested.

pytest contract_tests                                        # one that the tests start
pytest contract_tests --base-url http://host:8080 --api-key KEY      # any other

A repository whose servers the tests are to start implements the hook `pytest_contract_launcher`.
"""

import pytest

# A failing assertion in these has to show its values, as one in a test does: pytest must know
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
