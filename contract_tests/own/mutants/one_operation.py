"""Schemathesis and one operation, for test_mutants.py: pytest has to be given this file.

Collecting the tests of all operations takes far longer than those of one.
"""

from typing import Any

from schemathesis import Case

from contract_tests.kit import fuzzing
from contract_tests.kit.operations.test_schemathesis import call, unhurried
from contract_tests.kit.server import Server


def is_another(context: Any) -> bool:
    return bool(context.operation.definition.raw["operationId"] != "detokenize")


positive = fuzzing.schema("positive").exclude(is_another)
negative = fuzzing.schema("negative").exclude(is_another)


@positive.parametrize()
@unhurried
def test_valid_requests(case: Case[Any], server: Server) -> None:
    call(case, server)


@negative.parametrize()
@unhurried
def test_invalid_requests(case: Case[Any], server: Server) -> None:
    call(case, server)
