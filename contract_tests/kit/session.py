"""Tests one server: discovers what it offers, runs the tests, and shows progress on stderr."""

import sys
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from contract_tests.kit.discovery import discover
from contract_tests.kit.findings import Findings
from contract_tests.kit.running import operations, run
from contract_tests.kit.server import Server

CUT_SHORT = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
)


def test(
    base_url: str, api_key: str | None, chosen: Sequence[str] | None, max_examples: int
) -> Findings:
    """Tests the server and returns the findings. Raises `ConnectionError` if the server can't be
    reached, `LookupError` for an unknown choice."""
    console = Console(stderr=True)
    names = None if chosen is None else operations(chosen)
    server = Server(base_url, api_key)
    with console.status("asking what the server offers"):
        offer = discover(server)
    n_all = len(list(Findings(offer)))
    console.print(
        f"{offer.server} at {offer.url}: {n_all - len(offer.absent)} of {n_all} operations"
    )
    for feature, value in offer.features.items():
        console.print(f"  {feature}: {value}", highlight=False)
    findings = Findings(offer, names)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("collecting the tests", total=None)

        def progressed(done: int, total: int, title: str) -> None:
            progress.update(bar, completed=done, total=total, description=title[:80])
            for each in findings.news():
                console.print(f"deviates: {each}", highlight=False, markup=False, soft_wrap=True)
            # The progress bar isn't shown in a log.
            if not console.is_terminal and done and done * 20 // total > (done - 1) * 20 // total:
                console.print(f"{done} of {total} tests, next: {title[:80]}", highlight=False)

        code = run(server, findings, names, max_examples, progressed)
    server.close()
    findings.is_whole = code not in CUT_SHORT or findings.ended is not None
    for verdict, number in findings.counts().items():
        console.print(f"{number:4} {verdict}", highlight=False)
    sys.stderr.flush()
    return findings
