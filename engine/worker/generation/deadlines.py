"""The deadlines of requests: when a prompt has to be evaluated, and when a text has to end."""

import math
from typing import Final, NamedTuple, Self

from specllama.engine.wire.replies import Deadline
from specllama.engine.wire.requests import Terms

NEVER: Final = math.inf


class Deadlines(NamedTuple):
    """Times of `system.now`: the prompt must be evaluated at `prompt`, and the text ends at
    `total`."""

    prompt: float = NEVER
    total: float = NEVER

    @classmethod
    def of(cls, terms: Terms, arrived: float) -> Self:
        """Returns the deadlines of a request with these terms, which `arrived` at that time."""
        prompt = arrived + 1e-3 * terms.prompt_ms if terms.prompt_ms > 0 else NEVER
        total = arrived + 1e-3 * terms.timeout_ms if terms.timeout_ms > 0 else NEVER
        return cls(prompt, total)

    @property
    def first(self) -> float:
        """The earlier one."""
        return min(self)

    def passed(self, now: float, *, in_prompt: bool) -> Deadline:
        """Returns the deadline that has passed; "" if none has. The one of the prompt counts only
        while the request is `in_prompt`."""
        if now >= self.total:
            return "total"
        return "prompt" if in_prompt and now >= self.prompt else ""

    def following(self, *, in_prompt: bool) -> float:
        """Returns the earliest deadline that still counts."""
        return self.first if in_prompt else self.total
