"""Prints the list of mutants and the score as Markdown.

    python -m contract_tests.kit.mutants.report > docs/reports/mutants.md

contract_tests/own/test_mutants.py checks that each check catches its mutants, and that the page is
up to date.
"""

from itertools import groupby

from contract_tests.kit.mutants.catalog import ALL
from contract_tests.kit.mutants.mutant import Mutant

INTRODUCTION = """\
# Mutants: would the contract tests notice?

Written by `python -m contract_tests.kit.mutants.report`; edit that, not this page.

Tests that never fail prove nothing, so the contract tests have to catch servers that are broken on
purpose, each in one way. A *mutant* is an intact server behind a proxy that changes one thing: a
request on its way in, or an answer or a stream's event on its way out. A mutant is caught if the
check in its row fails for the expected reason. Most mutants keep the form of all answers as
described, so that only the content is wrong.

`contract_tests/own/test_mutants.py` runs all mutants, and runs every check through the same proxy
without a change. [`specllama-contract mutants`](../contract-kit.md) does so with any server.
"""


def page() -> str:
    caught = [mutant for mutant in ALL if mutant.check is not None]
    share = 100 * len(caught) / len(ALL)
    score = f"**{len(caught)} of {len(ALL)} mutants are caught: {share:.1f} %.**\n"
    parts = [INTRODUCTION, score, *_tables(caught)]
    if missed := [mutant for mutant in ALL if mutant.check is None]:
        rows = [f"| `{each.name}` | {each.says} | {each.failure} |" for each in missed]
        table = ["| mutant | what is broken | why no check fails |", "|---|---|---|", *rows]
        parts.append("\n".join(["## Not caught", "", *table, ""]))
    return "\n".join(parts)


def _tables(mutants: list[Mutant]) -> list[str]:
    tables = []
    for api, group in groupby(mutants, key=lambda mutant: mutant.api):
        rows = [f"| `{each.name}` | {each.says} | `{_check(each)}` |" for each in group]
        table = ["| mutant | what is broken | caught by |", "|---|---|---|", *rows]
        tables.append("\n".join([f"## {api}", "", *table, ""]))
    return tables


def _check(mutant: Mutant) -> str:
    return mutant.check.__name__ if mutant.check else ""


if __name__ == "__main__":
    print(page(), end="")
