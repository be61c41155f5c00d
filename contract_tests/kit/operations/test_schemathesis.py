"""Generated requests, valid and invalid, to every operation; every check of every answer."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Verbosity
from hypothesis import settings as hypothesis_settings
from schemathesis import Case

from contract_tests.kit import fuzzing
from contract_tests.kit.server import API_KEY, SECONDS, OwnServer, Server, Start

positive = fuzzing.schema("positive")
# Of an operation without parameters and body there is no invalid request.
negative = fuzzing.schema("negative").exclude(fuzzing.has_no_input)

# The same paths do other things in a router.
FEW = 8
routed_positive = fuzzing.schema("positive", FEW).exclude(fuzzing.is_not_about_models)
routed_negative = (
    fuzzing.schema("negative", FEW)
    .exclude(fuzzing.is_not_about_models)
    .exclude(fuzzing.has_no_input)
)

unhurried = hypothesis_settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    print_blob=False,
    verbosity=Verbosity.quiet,
)


def call(case: Case[Any], server: Server) -> Any:
    fuzzing.skip_spellings(case)
    fuzzing.bound_length(case)
    answer = case.call(base_url=server.url, headers=server.auth, timeout=SECONDS)
    server.hear(answer)
    case.validate_response(answer)


@positive.parametrize()
@unhurried
def test_valid_requests(case: Case[Any], server: Server) -> None:
    call(case, server)


@negative.parametrize()
@unhurried
def test_invalid_requests(case: Case[Any], server: Server) -> None:
    call(case, server)


@pytest.fixture(scope="module")
def router(module_server: Start, hub: dict[str, str]) -> OwnServer:
    return module_server(router=True, variables=hub, api_key=API_KEY)


@routed_positive.parametrize()
@unhurried
def test_valid_requests_to_a_router(case: Case[Any], router: OwnServer) -> None:
    call(case, router)


@routed_negative.parametrize()
@unhurried
def test_invalid_requests_to_a_router(case: Case[Any], router: OwnServer) -> None:
    call(case, router)
