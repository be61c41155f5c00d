"""The limits of the queue, and the deadlines of requests: when a prompt has to be evaluated, and
when a text has to end."""

from math import ceil, inf
from typing import Final, NamedTuple, Self

from specllama.engine.errors import ErrorInfo
from specllama.engine.options.tables.context import ContextOptions
from specllama.engine.wire.replies import Deadline
from specllama.engine.wire.requests import Terms


class QueueLimits:
    """Refuses requests that would have to wait if too many wait already. A limit of 0 is none.

    `wait` is the estimated time in seconds until a request that arrives now would get a slot; the
    thread that steps sets it whenever a request begins to wait. Only `refuse_call` may run in
    another thread.
    """

    def __init__(self, options: ContextOptions) -> None:
        self.max_calls: Final = options.max_queue
        self.max_tokens: Final = options.max_queue_tokens
        self.wait = 0.0
        self._n_calls_refused = 0  # by `refuse_call`, in its thread
        self._n_others_refused = 0

    @property
    def n_refused(self) -> int:
        """The number of refused requests."""
        return self._n_calls_refused + self._n_others_refused

    def refuse_call(self, n_waiting: int) -> ErrorInfo | None:
        """The error of a new call while `n_waiting` other ones wait; None if it may wait."""
        if not self.max_calls or n_waiting < self.max_calls:
            return None
        self._n_calls_refused += 1
        return _refusal(
            f"{n_waiting} requests wait for this model, and --max-queue is {self.max_calls}",
            self.wait,
        )

    def refuse_tokens(self, n_waiting: int, n_tokens: int) -> ErrorInfo | None:
        """The error of a text with `n_tokens` uncached prompt tokens while texts with `n_waiting`
        tokens wait; None if it may wait."""
        if not self.max_tokens or n_waiting + n_tokens <= self.max_tokens:
            return None
        self._n_others_refused += 1
        return _refusal(
            f"prompts with {n_waiting} tokens wait for this model, this one would add {n_tokens}, "
            f"and --max-queue-tokens is {self.max_tokens}",
            self.wait,
        )

    def refuse_late(self, seconds: float, left: float, what: str) -> ErrorInfo | None:
        """The error of a request that takes an estimated `seconds` until `what`, if only `left`
        seconds are left; None if it can be in time."""
        if seconds <= left:
            return None
        self._n_others_refused += 1
        return _refusal(
            f"the request can't be in time: {what} would take about {seconds:.1f} seconds, and "
            f"{max(0.0, left):.1f} seconds are left",
            seconds,
        )


def _refusal(message: str, wait: float) -> ErrorInfo:
    """The error with an estimated `wait` in seconds."""
    return ErrorInfo(
        "unavailable_error",
        message,
        retry_after=max(1, ceil(wait)),
        estimated_wait_ms=round(1e3 * wait),
    )


def refuse_allowance(n_tokens: int, allowance: int) -> ErrorInfo | None:
    """The error of a request that may use `n_tokens`, if it is allowed to use fewer (-1: any
    number)."""
    if allowance < 0 or n_tokens <= allowance:
        return None
    return ErrorInfo(
        "rate_limit_error",
        f"the request may use {n_tokens} tokens, and the limit of its key leaves {allowance}",
        n_tokens=n_tokens,
    )


# ---- The deadlines of requests.


NEVER: Final = inf


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
