"""The terms of a request, from its key and its wishes; and its time limits in the server."""

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import system
from specllama.engine.errors import EngineError
from specllama.engine.options.declaration import FIRST_PRIORITY
from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.handlers.http.api_keys import ApiKey, KeyRing
from specllama.handlers.http.current import _scope
from specllama.handlers.http.log_fields import LogFields
from specllama.handlers.running.terms import (
    NO_WISHES,
    Wishes,
    current_terms,
    in_time,
    terms_of,
)

DAY = 86_400_000  # ms


def key(**fields: Any) -> ApiKey:
    return ApiKey(name="someone", id="key:someone", digest=b"secret", **fields)


def test_a_server_without_keys_has_no_terms() -> None:
    assert terms_of(None, NO_WISHES) is NO_TERMS
    assert terms_of(None, NO_WISHES, default_priority=3) == Terms(priority=3)
    assert terms_of(None, Wishes(priority=-128)) == Terms(priority=-128)


@pytest.mark.parametrize(
    ("wished", "of_key", "default", "expected"),
    [
        (None, 0, 0, 0),
        (None, 0, 5, 5),
        (None, 7, 5, 7),
        (None, -3, 5, -3),
        (9, 7, 5, 9),
        (0, 7, 5, 0),
        (-2, 7, 5, -2),
        (-3, 7, 5, -2),
        (-128, 7, 5, -2),
    ],
)
def test_a_request_gets_no_better_priority_than_its_key_allows(
    wished: int | None, of_key: int, default: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = terms_of(
        key(priority=of_key, best_priority=-2), Wishes(priority=wished), default_priority=default
    )
    assert found.priority == expected
    assert ("priority" in caplog.text) == (wished is not None and wished < -2)


def test_administrators_may_choose_any_priority() -> None:
    found = KeyRing.of_secrets(["secret"]).find(b"secret")
    assert found is not None
    assert terms_of(found, Wishes(priority=FIRST_PRIORITY)).priority == FIRST_PRIORITY


def test_the_key_has_a_share_and_a_name() -> None:
    found = terms_of(key(weight=2.5, cache_mib=3), NO_WISHES)
    assert found == Terms(weight=2.5, key_name="someone", cache_bytes=3 << 20)


@given(st.none() | st.integers(-1, DAY), st.none() | st.integers(-1, DAY), st.floats(0, float(DAY)))
def test_what_is_left_of_a_time_limit(
    total: int | None, prompt: int | None, passed_ms: float
) -> None:
    found = terms_of(None, Wishes(None, total, prompt), passed_ms=passed_ms)
    for limit, left in ((total, found.timeout_ms), (prompt, found.prompt_ms)):
        if limit is None or limit <= 0:
            assert left == 0, "no limit"
        else:
            assert left >= 1, "a limit stays one"
            assert left == max(1, int(limit - passed_ms))


wishes = st.builds(Wishes, *[st.none() | st.integers(-128, 127)] * 3)


@given(wishes, wishes)
def test_the_first_choice_counts(first: Wishes, second: Wishes) -> None:
    both = first.or_else(second)
    for a, b, found in zip(first, second, both, strict=True):
        assert found == (b if a is None else a)
    limits = [ms for ms in both[1:] if ms is not None and ms > 0]
    assert both.first_ms == (min(limits) if limits else 0)


# ---- the current request -----------------------------------------------------------------


@dataclasses.dataclass
class _Runtime:
    api_keys: KeyRing


@pytest.fixture
def arrived() -> Iterator[LogFields]:
    """The fields of a request that arrives now."""
    fields = LogFields("1", system.now())
    state = {"log_fields": fields, "runtime": _Runtime(KeyRing())}
    token = _scope.set({"state": state, "headers": [], "query_string": b""})
    yield fields
    _scope.reset(token)


def test_time_counts_from_the_arrival(arrived: LogFields) -> None:
    arrived.arrived -= DAY / 1e3
    assert current_terms(Wishes(timeout_ms=5)).timeout_ms == 1
    left = current_terms(Wishes(timeout_ms=3 * DAY)).timeout_ms
    assert DAY < left <= 2 * DAY


def test_work_beyond_its_time_is_cancelled_with_503(arrived: LogFields) -> None:
    arrived.arrived -= DAY / 1e3
    ended = False

    async def work() -> None:
        nonlocal ended
        async with in_time(DAY // 2):
            try:
                await asyncio.Event().wait()
            finally:
                ended = True

    with pytest.raises(EngineError, match=f"within its {DAY // 2} ms") as caught:
        asyncio.run(work())
    assert caught.value.info.type == "unavailable_error"
    assert ended


@pytest.mark.parametrize("limit", [None, 0, -1, 2 * DAY])
@pytest.mark.usefixtures("arrived")
def test_other_errors_stay_what_they_are(limit: int | None) -> None:
    async def work() -> None:
        async with in_time(limit):
            await asyncio.sleep(0)
            raise TimeoutError("of another kind")

    with pytest.raises(TimeoutError, match="of another kind"):
        asyncio.run(work())


def test_remarks_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    terms_of(key(), Wishes(priority=-1))
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
