"""Generated requests, valid and invalid, to every operation, with every check of every answer."""

from typing import Any

import pytest
from schemathesis import Case

from contract_tests.kit import fuzzing
from contract_tests.kit.server import API_KEY, SECONDS, OwnServer, Server, Start

FEW = 8
"""Examples per operation of a router, where the same paths behave differently."""


def call(case: Case[Any], server: Server) -> None:
    fuzzing.skip_spellings(case)
    fuzzing.bound(case)
    answer = case.call(base_url=server.url, headers=server.auth, timeout=SECONDS)
    server.hear(answer)
    case.validate_response(answer, excluded_checks=fuzzing.excluded_checks(case))


@pytest.mark.parametrize("operation", fuzzing.operations("positive"))
def test_valid_requests(operation: str, server: Server) -> None:
    fuzzing.fuzz("positive", operation, lambda case: call(case, server))


@pytest.mark.parametrize("operation", fuzzing.operations("negative"))
def test_invalid_requests(operation: str, server: Server) -> None:
    fuzzing.fuzz("negative", operation, lambda case: call(case, server))


@pytest.fixture(scope="module")
def router(module_server: Start, hub: dict[str, str]) -> OwnServer:
    return module_server(router=True, variables=hub, api_key=API_KEY)


@pytest.mark.parametrize("operation", fuzzing.operations("positive", tag="models"))
def test_valid_requests_to_a_router(operation: str, router: OwnServer) -> None:
    fuzzing.fuzz("positive", operation, lambda case: call(case, router), FEW)


@pytest.mark.parametrize("operation", fuzzing.operations("negative", tag="models"))
def test_invalid_requests_to_a_router(operation: str, router: OwnServer) -> None:
    fuzzing.fuzz("negative", operation, lambda case: call(case, router), FEW)
