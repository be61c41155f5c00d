"""A row of the table of accepted differences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request


class Extent(IntEnum):
    """How far two answers are apart."""

    EQUAL = 0
    KEYS = 1  # ours has more keys, each of them named in the table
    WORDS = 2  # an error is told in other words, too
    VALUES = 3  # a status, a value or a key that the peer has


@dataclass(frozen=True)
class Accepted:
    """A row of the table. A difference belongs to it if its cause matches `causes` in full, and
    the path and the name of its request, if given, match `paths` and `requests` from the start. A
    row of what the peer does in some runs alone is `sometimes` shown."""

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
        """A row of keys that only our answers have, each by its whole name."""
        named = ", ".join(f"`{key}`" for key in keys)
        causes = rf"extra ({'|'.join(map(re.escape, keys))})"
        return cls(title, "", f"There are {named}.", reason, causes, paths, extent=Extent.KEYS)

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
"""What follows from it that the texts of two answers differ."""
OTHER_PROMPT = rf"{OTHER_TEXT}|value (prompt|tokens_evaluated|usage\.(prompt|input)_tokens)"
