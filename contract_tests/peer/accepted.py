"""Differences that are meant, each with its reason; also a page of the documentation:

python -m contract_tests.peer.accepted > docs/coming-from-llama-server.md
"""

import json
from collections.abc import Collection
from pathlib import Path

from contract_tests.peer import rows_of_answers, rows_of_keys, rows_of_requests
from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request
from contract_tests.peer.row import Accepted, Extent

ACCEPTED = (*rows_of_keys.ROWS, *rows_of_answers.ROWS, *rows_of_requests.ROWS)
RECORD = Path(__file__).with_name("record.json")
"""Of the last whole run that `--record` kept: how many requests are how far apart, and the titles
of the rows that explain a difference."""
MEANINGS = {
    Extent.EQUAL: "have equal answers",
    Extent.KEYS: "have equal answers but for the additional keys that the table names",
    Extent.WORDS: "have errors that are equal but for their words",
    Extent.VALUES: "differ in a status or a value as the table says",
}


def row_of(request: Request, difference: Difference) -> Accepted | None:
    """The row that explains the difference."""
    return next((each for each in ACCEPTED if each.covers(request, difference)), None)


INTRODUCTION = """# Coming from llama-server

What works with llama-server works here: the same options, paths, fields and answers. `nox -s peer`
sends the same requests to both and compares the answers, all but ids, times and how much of a
prompt was cached. Of {total} requests {counts}. What differs on purpose is this.

| | llama-server | specllama | why |
|---|---|---|---|"""


def page() -> str:
    """Raises ValueError if there is a row whose difference no request of that run has shown."""
    if stale := without_difference(json.loads(RECORD.read_text("utf-8"))["rows"]):
        raise ValueError(f"no request shows the differences of these rows: {', '.join(stale)}")
    rows = (f"| {each.title} | {each.there} | {each.here} | {each.reason} |" for each in ACCEPTED)
    counts = recorded()
    told = [f"{counts[extent]} {meaning}" for extent, meaning in MEANINGS.items()]
    said = f"{', '.join(told[:-1])}, and {told[-1]}"
    total = f"{sum(counts.values()):,}"
    introduction = INTRODUCTION.format(total=total, counts=said)
    return "\n".join([introduction, *rows, ""])


def recorded() -> dict[Extent, int]:
    counts = json.loads(RECORD.read_text("utf-8"))["counts"]
    return {extent: counts[extent.name.lower()] for extent in Extent}


def without_difference(shown: Collection[str]) -> list[str]:
    """The titles of rows that are not among those `shown`, and had to be."""
    return [row.title for row in ACCEPTED if row.title not in shown and not row.sometimes]


if __name__ == "__main__":
    print(page(), end="")
