"""Differences that are meant, each with its reason; also a page of the documentation:

python -m contract_tests.peer.accepted > docs/coming-from-llama-server.md
"""

import re
from dataclasses import dataclass

from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request


@dataclass(frozen=True)
class Accepted:
    """A row of the table. A difference belongs to it if its cause matches `causes` in full, and
    the path of its request, if given, matches `paths` from the start."""

    title: str
    there: str
    here: str
    reason: str
    causes: str
    paths: str = ""

    def covers(self, request: Request, difference: Difference) -> bool:
        return bool(
            re.fullmatch(self.causes, difference.cause) and re.match(self.paths, request.path)
        )


ACCEPTED = (
    Accepted(
        "Bad requests",
        "Malformed JSON, and fields of a wrong type, are status 500.",
        "They are status 400.",
        "The fault is the client's: a 500 makes clients try again what can't succeed.",
        r"status (400|501) for 500",
    ),
    Accepted(
        "Requests that end the server",
        "Some requests run into an assertion, which ends the process.",
        "They are served or refused.",
        "One client must not take the server from all others.",
        r"status \d+ for 0",
    ),
    Accepted(
        "Words of errors",
        "The message comes from where the fault was noticed.",
        "It names the field and what is right. The texts that clients look for are the same.",
        "`error.type` and `error.code` are for programs, the message is for people.",
        r"wording .*error\.message",
    ),
    Accepted(
        "More fields in answers",
        "",
        "Some answers have more fields: counts, settings in force, the `param` of an error.",
        "The documents of the APIs name them; clients ignore fields that they don't know.",
        r"extra .*",
    ),
    Accepted(
        "Name of the model",
        "The path of the file, without `--alias`.",
        "The name of the file.",
        "A path tells clients about the server's file system.",
        r"value (.*\.)?(model|name|id|model_alias)",
        r".*/(models|props|chat/completions)$",
    ),
    Accepted(
        "`tokens_cached`",
        "All tokens of the slot when the answer ends.",
        "Tokens of the prompt that were taken from the cache.",
        "That is what its documentation says it is.",
        r"value .*tokens_cached",
    ),
)


def reason(request: Request, difference: Difference) -> str | None:
    """The title of the row that explains the difference."""
    return next((each.title for each in ACCEPTED if each.covers(request, difference)), None)


INTRODUCTION = """# Coming from llama-server

What works with llama-server works here: the same options, paths, fields and answers. `nox -s peer`
sends the same requests to both and compares the answers. What differs on purpose is this.

| | llama-server | specllama | why |
|---|---|---|---|"""


def page() -> str:
    rows = (f"| {each.title} | {each.there} | {each.here} | {each.reason} |" for each in ACCEPTED)
    return "\n".join([INTRODUCTION, *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
