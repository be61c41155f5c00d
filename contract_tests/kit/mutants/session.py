"""Tests the mutants of one server, and prints their verdicts.

The modules of the kit are imported after pytest, because pytest rewrites their assertions to show
the compared values.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from contract_tests.kit.plugins import without_other_plugins

if TYPE_CHECKING:
    from contract_tests.kit.mutants.judging import Verdict
    from contract_tests.kit.mutants.proxy import Proxy

HERE = Path(__file__).parent
KIT = HERE.parent
PACKAGE = __name__.rpartition(".mutants.")[0]
PROXY: "pytest.StashKey[Proxy]" = pytest.StashKey()
VERDICTS: "pytest.StashKey[Callable[[str, Verdict], None]]" = pytest.StashKey()
"""A callback for the name and the verdict of each mutant."""
LONGEST = 400
"""Characters of a reason that are printed."""
ALL_CAUGHT, SOME_NOT_CAUGHT, NOT_TESTED = 0, 1, 2


def run(base_url: str, api_key: str | None, chosen: re.Pattern[str] | None, timeout: int) -> int:
    """Tests the server and prints a line for each mutant. Returns the exit status."""
    session = Session(base_url, api_key, chosen)
    arguments = [
        str(HERE / "each.py"),
        *("-c", str(KIT / "running.ini"), "--rootdir", str(KIT), "--noconftest"),
        "--import-mode=importlib",
        *("-p", f"{PACKAGE}.plugin", "-p", "pytest_timeout", "--timeout", str(timeout)),
        *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:warnings", "-s"),
    ]
    with without_other_plugins():
        code = pytest.main(arguments, plugins=[session])
    return session.end(code)


class Session:
    """A pytest plugin that puts the proxy in front of the server, and reports the verdicts."""

    def __init__(self, base_url: str, api_key: str | None, chosen: re.Pattern[str] | None) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._chosen = chosen
        self._console = Console(stderr=True)
        self._outcomes: Counter[str] = Counter()
        self._total = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        from contract_tests.kit.discovery import UnreachableError, discover
        from contract_tests.kit.fixtures import WATCH
        from contract_tests.kit.mutants.proxy import Proxy
        from contract_tests.kit.server import Server
        from contract_tests.kit.watching import Watch

        server = Server(self._base_url, self._api_key)
        try:
            with self._console.status("asking what the server offers"):
                offer = discover(server)
        except UnreachableError as error:
            raise pytest.UsageError(str(error)) from error
        finally:
            server.close()
        proxy = Proxy(server.url, server.api_key)
        stack = contextlib.ExitStack()
        stack.enter_context(proxy)
        config.add_cleanup(stack.close)
        config.stash[PROXY] = proxy
        config.stash[VERDICTS] = self.report
        config.stash[WATCH] = Watch(replace(offer, url=proxy.url))
        config.option.base_url, config.option.api_key = proxy.url, server.api_key
        self._console.print(f"{offer.server} at {offer.url}", highlight=False)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if pattern := self._chosen:
            items[:] = [item for item in items if pattern.search(_name(item.nodeid))]
        self._total = len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # an error outside the checks
            from contract_tests.kit.mutants.judging import Verdict

            self.report(_name(report.nodeid), Verdict("not caught", report.longreprtext))

    def report(self, name: str, verdict: "Verdict") -> None:
        """Prints the verdict on one mutant."""
        self._outcomes[verdict.outcome] += 1
        done = f"{self._outcomes.total()}/{self._total}"
        why = f": {shorten(verdict.why, LONGEST)}" if verdict.why else ""
        print(f"{done:>7}  {verdict.outcome:<14}  {name}{why}", flush=True)

    def end(self, code: int) -> int:
        """Prints the number of mutants for each verdict, and returns the exit status."""
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return NOT_TESTED
        print(", ".join(f"{number} {outcome}" for outcome, number in self._outcomes.items()))
        return SOME_NOT_CAUGHT if self._outcomes["not caught"] else ALL_CAUGHT


def _name(nodeid: str) -> str:
    """Returns the name of a test's mutant."""
    return nodeid.partition("[")[2].removesuffix("]")
