"""An alias is the same operation; only an exhaustive run tests all aliases in full."""

from importlib import import_module

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import ALIASES

CONTROLLER = "x-openapi-router-controller"


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_has_the_handler_of_its_operation(alias: str) -> None:
    found = [
        getattr(import_module(contract.operations()[name].definition[CONTROLLER]), name)
        for name in (alias, ALIASES[alias])
    ]
    assert found[0] is found[1]


def test_an_alias_has_the_description_of_its_operation() -> None:
    named = [name for name in contract.operations() if name.endswith("_alias")]
    assert [*ALIASES] == named
