"""A row of the table of accepted differences."""

import re
from dataclasses import dataclass

from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request


@dataclass(frozen=True)
class Accepted:
    """A row of the table. A difference belongs to it if its cause matches `causes` in full, and
    the path and the name of its request, if given, match `paths` and `requests` from the start."""

    title: str
    there: str
    here: str
    reason: str
    causes: str
    paths: str = ""
    requests: str = ""

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
