"""Generated requests, valid and invalid, to every operation; every check of every answer."""

from typing import Any

from hypothesis import HealthCheck, Verbosity
from hypothesis import settings as hypothesis_settings
from schemathesis import Case

from contract_tests import fuzzing
from contract_tests.server import SECONDS, Server

positive = fuzzing.schema("positive")
# Of an operation without parameters and body there is no invalid request.
negative = fuzzing.schema("negative").exclude(fuzzing.has_no_input)

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
    case.call_and_validate(base_url=server.url, headers=server.auth, timeout=SECONDS)


@positive.parametrize()
@unhurried
def test_valid_requests(case: Case[Any], default_server: Server) -> None:
    call(case, default_server)


@negative.parametrize()
@unhurried
def test_invalid_requests(case: Case[Any], default_server: Server) -> None:
    call(case, default_server)
