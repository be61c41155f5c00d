"""The headers that report the limits of an API key, as the clients of each API read them."""

import math
from datetime import UTC, datetime
from typing import Literal

import msgspec

Header = tuple[bytes, bytes]
Kind = Literal["requests", "tokens"]


class RateLimit(msgspec.Struct, frozen=True):
    """One limit: `remaining` units of `limit` may be used now; after `reset` seconds without use,
    all of them."""

    kind: Kind
    limit: int
    remaining: int
    reset: float


def openai_headers(limit: RateLimit) -> list[Header]:
    """`x-ratelimit-limit-requests: 60` and the like, with the time as a duration."""
    values = {
        "limit": str(limit.limit),
        "remaining": str(limit.remaining),
        "reset": duration(limit.reset),
    }
    return [
        (f"x-ratelimit-{name}-{limit.kind}".encode(), value.encode())
        for name, value in values.items()
    ]


def anthropic_headers(limit: RateLimit, now: float) -> list[Header]:
    """`anthropic-ratelimit-requests-limit: 60` and the like, with the time as a date. `now` is in
    seconds since 1970."""
    moment = datetime.fromtimestamp(math.ceil(now + limit.reset), UTC)
    values = {
        "limit": str(limit.limit),
        "remaining": str(limit.remaining),
        "reset": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return [
        (f"anthropic-ratelimit-{limit.kind}-{name}".encode(), value.encode())
        for name, value in values.items()
    ]


NAMES = [
    *(f"x-ratelimit-{name}-{kind}" for kind in ("requests", "tokens")
      for name in ("limit", "remaining", "reset")),
    *(f"anthropic-ratelimit-{kind}-{name}" for kind in ("requests", "tokens")
      for name in ("limit", "remaining", "reset")),
]  # fmt: skip
"""The names of all headers of this module."""


def duration(seconds: float) -> str:
    """Returns a duration in OpenAI's form, which is Go's: `0s`, `120ms`, `1.5s`, `6m0s`. Rounded
    up to milliseconds."""
    ms = math.ceil(seconds * 1000 - 1e-6)
    if ms <= 0:
        return "0s"
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, fraction = divmod(ms, 1000)
    text = f"{whole}.{fraction:03}".rstrip("0").rstrip(".") if fraction else str(whole)
    if hours:
        return f"{hours}h{minutes}m{text}s"
    return f"{minutes}m{text}s" if minutes else f"{text}s"
