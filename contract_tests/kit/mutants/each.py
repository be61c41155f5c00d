"""Runs every mutant of the server at `--base-url` against its check; see `session`."""

import functools
from collections.abc import Callable

import pytest

from contract_tests.kit.mutants import catalog
from contract_tests.kit.mutants.judging import OF_FORM, Verdict, healthy, judge
from contract_tests.kit.mutants.mutant import Check, Mutant
from contract_tests.kit.mutants.session import PROXY, VERDICTS
from contract_tests.kit.server import Server

CAUGHT = [mutant for mutant in catalog.ALL if mutant.check is not None]


@pytest.fixture(scope="session")
def itself(server: Server) -> Callable[[Check], Verdict | None]:
    """Returns a function for the verdict on the unchanged server. It runs each check once."""
    return functools.cache(lambda check: healthy(check, server))


@pytest.mark.parametrize("mutant", CAUGHT, ids=[each.name for each in CAUGHT])
def test_mutant(
    mutant: Mutant,
    server: Server,
    itself: Callable[[Check], Verdict | None],
    pytestconfig: pytest.Config,
) -> None:
    assert mutant.check is not None
    verdict = itself(mutant.check)
    if verdict is None:
        of_form = [check for check in OF_FORM if itself(check) is None]
        verdict = judge(mutant, pytestconfig.stash[PROXY], server, of_form)
    pytestconfig.stash[VERDICTS](mutant.name, verdict)
