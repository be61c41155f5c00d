"""A row of the table of accepted differences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request


class Extent(IntEnum):
    """The extent of a difference between two answers."""

    EQUAL = 0
    KEYS = 1  # our answer has more keys, which the table lists
    WORDS = 2  # an error has another message, too
    VALUES = 3  # a status, a value or a key of the peer differs


@dataclass(frozen=True)
class Accepted:
    """A row of the table. It covers a difference if `causes` matches the whole cause, and if
    `paths` and `requests`, if given, match the beginnings of the request's path and name. A row for
    behaviour that a server has only in some runs is shown `sometimes`."""

    title: str
    there: str
    here: str
    reason: str
    causes: str
    paths: str = ""
    requests: str = ""
    extent: Extent = Extent.VALUES
    sometimes: bool = False

    @classmethod
    def more(cls, title: str, keys: Sequence[str], reason: str, paths: str) -> Self:
        """Returns a row for keys that only our answers have, each by its whole name."""
        named = ", ".join(f"`{key}`" for key in keys)
        causes = rf"extra ({'|'.join(map(re.escape, keys))})"
        return cls(title, "", f"It adds {named}.", reason, causes, paths, extent=Extent.KEYS)

    def covers(self, request: Request, difference: Difference) -> bool:
        return bool(
            re.fullmatch(self.causes, difference.cause)
            and re.match(self.paths, request.path)
            and re.match(self.requests, request.name)
        )


COUNTS = (
    r"value (timings\.predicted_n|tokens_predicted"
    r"|usage\.(completion_tokens|output_tokens|total_tokens))"
)
OTHER_TEXT = (
    rf"{COUNTS}|events count|text stream|value (has_new_line|stop_type)"
    r"|value (.*\.)?(content|text|reasoning_content|delta)"
)
"""Differences that follow from different texts of two answers."""
OTHER_PROMPT = rf"{OTHER_TEXT}|value (prompt|tokens_evaluated|usage\.(prompt|input)_tokens)"
