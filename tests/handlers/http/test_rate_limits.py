"""The headers that report limits."""

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.handlers.http.rate_limits import (
    NAMES,
    RateLimit,
    anthropic_headers,
    duration,
    openai_headers,
)

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (86399.25, "23h59m59.25s"),
        (100 * 3600, "100h0m0s"),
    ],
)
def test_durations_of_openai(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e7))
def test_a_duration_is_never_too_short(seconds: float) -> None:
    parts = re.findall(r"([0-9.]+)(h|ms|m|s)", text := duration(seconds))
    assert "".join(map("".join, parts)) == text
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    assert seconds - 1e-6 <= total <= seconds + 0.0011


def test_the_names_of_each_api() -> None:
    limit = RateLimit("tokens", 1000, 250, 45.0)
    assert openai_headers(limit) == [
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"250"),
        (b"x-ratelimit-reset-tokens", b"45s"),
    ]
    made = anthropic_headers(limit, 1_000_000_000.5)
    assert made == [
        (b"anthropic-ratelimit-tokens-limit", b"1000"),
        (b"anthropic-ratelimit-tokens-remaining", b"250"),
        (b"anthropic-ratelimit-tokens-reset", b"2001-09-09T01:47:26Z"),
    ]
    assert datetime.fromisoformat(made[-1][1].decode()).timestamp() == 1_000_000_046
    for kind in ("requests", "tokens"):
        each = RateLimit("requests" if kind == "requests" else "tokens", 1, 1, 0.0)
        found = {name.decode() for name, _ in (*openai_headers(each), *anthropic_headers(each, 0))}
        assert found <= {*NAMES}
