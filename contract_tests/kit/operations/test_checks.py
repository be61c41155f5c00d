"""Runs the checks that any server of this API has to pass."""

from collections.abc import Callable

import pytest

from contract_tests.kit import checks
from contract_tests.kit.server import Server


@pytest.mark.parametrize("check", checks.ALL, ids=lambda check: check.__name__)
def test_check(check: Callable[[Server], None], server: Server) -> None:
    check(server)
