"""Decides whether a mutant is caught: its check has to fail for the expected reason."""

import re
import traceback
from collections.abc import Sequence
from typing import Literal, NamedTuple

import pytest

from contract_tests.kit import checks
from contract_tests.kit.mutants.mutant import Check, Mutant
from contract_tests.kit.mutants.proxy import Proxy
from contract_tests.kit.server import Server

Outcome = Literal["caught", "not caught", "not applicable"]


OF_FORM: tuple[Check, ...] = (
    checks.plain_answers_are_as_described,
    checks.streams_are_as_described,
)
"""Checks of the form of answers alone."""


class Verdict(NamedTuple):
    outcome: Outcome
    why: str = ""
    """The reason, unless the mutant is caught."""


def healthy(check: Check, server: Server) -> Verdict | None:
    """Returns the verdict for all mutants of a check that the unchanged server fails, or None if
    the server passes the check."""
    try:
        check(server)
    except pytest.skip.Exception as skipped:
        return Verdict("not applicable", str(skipped))
    except Exception as error:
        why = f"the server itself fails {check.__name__}: {_said(error)}"
        return Verdict("not applicable", why)
    return None


def judge(
    mutant: Mutant, proxy: Proxy, server: Server, of_form: Sequence[Check] = OF_FORM
) -> Verdict:
    """Returns the verdict on a mutant of a server that passes its check. `server` is reached
    through the proxy. A mutant whose answers are as described has to pass `OF_FORM` as well."""
    assert mutant.check is not None
    name = mutant.check.__name__
    with proxy.mutated(mutant.make()) as active:
        try:
            failure = _failure(mutant.check, server)
        except pytest.skip.Exception as skipped:
            # The changed request uses an operation that this server lacks.
            return Verdict("not applicable", str(skipped))
        if active.error is not None:
            return Verdict("not applicable", f"the answer can't be changed: {active.error!r}")
        if not active.exercised:
            return Verdict("not applicable", f"{name} sends no request that the mutant changes")
        if failure is None:
            return Verdict("not caught", f"{name} passes")
        if not re.search(mutant.failure, failure, re.DOTALL):
            return Verdict("not caught", f"{name} fails for another reason: {failure}")
        for check in of_form if mutant.as_described else ():
            if failure := _failure(check, server):
                return Verdict("not caught", f"its answers are not as described: {failure}")
    return Verdict("caught")


def _failure(check: Check, server: Server) -> str | None:
    """Returns the message of the check's failure; None if the check passes."""
    try:
        check(server)
    except Exception as error:
        return _said(error)
    return None


def _said(error: Exception) -> str:
    if not isinstance(error, AssertionError):
        return repr(error)
    # An assertion without a message is reported with its source line.
    return str(error) or str(traceback.extract_tb(error.__traceback__)[-1].line)
