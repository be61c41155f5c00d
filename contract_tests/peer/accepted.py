"""Intended differences, each with its reason; also a page of the documentation:

python -m contract_tests.peer.accepted > docs/coming-from-llama-server.md
"""

import json
from collections.abc import Collection
from pathlib import Path

from contract_tests.peer import (
    rows_of_answers,
    rows_of_keys,
    rows_of_options,
    rows_of_requests,
    rows_of_states,
)
from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request
from contract_tests.peer.row import Accepted, Extent

ACCEPTED = (*rows_of_keys.ROWS, *rows_of_answers.ROWS, *rows_of_requests.ROWS)
RECORD = Path(__file__).with_name("record.json")
"""The results of the last whole run with `--record`: the numbers of requests by the extent of their
difference, and the titles of the rows that explain a difference."""
MEANINGS = {
    Extent.EQUAL: "have equal answers",
    Extent.KEYS: "have equal answers except for additional keys, which the table lists",
    Extent.WORDS: "have errors with another message",
    Extent.VALUES: "differ in a status or a value as the table describes",
}


def row_of(request: Request, difference: Difference) -> Accepted | None:
    """Returns the row that explains the difference, or None."""
    return next((each for each in ACCEPTED if each.covers(request, difference)), None)


INTRODUCTION = """# Coming from llama-server

Programs for llama-server work with specllama: options, paths and fields are the same, and so are
the answers, except for the intended differences in this table. `nox -s peer` sends the same
requests to both servers and compares the answers, without ids, times and the number of cached
tokens. Of
{total} requests {counts}.

| | llama-server | specllama | why |
|---|---|---|---|"""
OPTIONS = """
## Options

These options of llama-server have the same meaning, except for what this table says.
[Options](options.md) lists the ones that have no effect, or are refused.

| option | llama-server | specllama | why |
|---|---|---|---|"""
STATES = """
## Beyond single requests

Comparing answers doesn't show these differences; llama-server's own tests do.

| | llama-server | specllama | why |
|---|---|---|---|"""


def page() -> str:
    """Returns the page. Raises ValueError if no request of the recorded run has shown a row's
    difference."""
    if stale := without_difference(json.loads(RECORD.read_text("utf-8"))["rows"]):
        raise ValueError(f"no request shows the differences of these rows: {', '.join(stale)}")
    rows = (f"| {each.title} | {each.there} | {each.here} | {each.reason} |" for each in ACCEPTED)
    counts = recorded()
    parts = [f"{counts[extent]} {meaning}" for extent, meaning in MEANINGS.items()]
    said = f"{', '.join(parts[:-1])}, and {parts[-1]}"
    total = f"{sum(counts.values()):,}"
    introduction = INTRODUCTION.format(total=total, counts=said)
    options = (f"| {' | '.join(each)} |" for each in rows_of_options.ROWS)
    states = (f"| {' | '.join(each)} |" for each in rows_of_states.ROWS)
    return "\n".join([introduction, *rows, STATES, *states, OPTIONS, *options, ""])


def recorded() -> dict[Extent, int]:
    counts = json.loads(RECORD.read_text("utf-8"))["counts"]
    return {extent: counts[extent.name.lower()] for extent in Extent}


def without_difference(shown: Collection[str]) -> list[str]:
    """Returns the titles of rows that are not among `shown`, without rows that are shown only
    sometimes."""
    return [row.title for row in ACCEPTED if row.title not in shown and not row.sometimes]


if __name__ == "__main__":
    print(page(), end="")
