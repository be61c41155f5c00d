"""Differences that are meant, each with its reason; also a page of the documentation:

python -m contract_tests.peer.accepted > docs/coming-from-llama-server.md
"""

from contract_tests.peer import rows_of_answers, rows_of_requests
from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request

ACCEPTED = (*rows_of_answers.ROWS, *rows_of_requests.ROWS)


def reason(request: Request, difference: Difference) -> str | None:
    """The title of the row that explains the difference."""
    return next((each.title for each in ACCEPTED if each.covers(request, difference)), None)


INTRODUCTION = """# Coming from llama-server

What works with llama-server works here: the same options, paths, fields and answers. `nox -s peer`
sends the same requests to both and compares the answers, all but ids, times and how much of a
prompt was cached. What differs on purpose is this.

| | llama-server | specllama | why |
|---|---|---|---|"""


def page() -> str:
    rows = (f"| {each.title} | {each.there} | {each.here} | {each.reason} |" for each in ACCEPTED)
    return "\n".join([INTRODUCTION, *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
