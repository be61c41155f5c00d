"""What a call may use, by its API key, and what it takes from the key's buckets."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.generation import Meter
from specllama.engine.wire.replies import Timings
from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.handlers.http import current
from specllama.handlers.http.api_keys import ApiKey, KeyRing, current_key
from specllama.handlers.http.rate_limits import RateLimit
from specllama.handlers.options.keys_file import digest
from specllama.handlers.running.admission import (
    Admission,
    AdmittedCall,
    admit,
    admitted_call,
    rate_limits,
)
from specllama.handlers.running.buckets import (
    BucketStore,
    Demand,
    MemoryBuckets,
    Taken,
)
from specllama.handlers.running.quotas import buckets_of
from specllama.handlers.running.stores import UnavailableStoreError
from specllama.handlers.running.usage import Usage, UsageLog, UsageQuery

T = TypeVar("T")


def called(keys: KeyRing, secret: str, work: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of `work` for a request with an API key, which ends after it."""

    async def run() -> T:
        admission = Admission(MemoryBuckets(), UsageLog())
        with ExitStack() as leases:
            state = {"runtime": SimpleNamespace(api_keys=keys, admission=admission)}
            current._scope.set(
                {
                    "state": {**state, "leases": leases},
                    "headers": [(b"authorization", f"Bearer {secret}".encode())],
                    "query_string": b"",
                }
            )
            result = await work()
        await admission.close()
        return result

    return asyncio.run(run())


def terms(keys: KeyRing, secret: str = "") -> Terms:
    async def work() -> Terms:
        await admit("model")
        return admitted_call().limited(NO_TERMS)

    return called(keys, secret, work)


def test_without_keys_there_are_no_terms() -> None:
    assert terms(KeyRing()) is NO_TERMS


def test_a_request_keeps_its_key() -> None:
    ring = KeyRing([ApiKey(name="alice", id="key:alice", digest=digest("sk"))])

    async def work() -> None:
        assert current_key() is not None
        ring.replace([ApiKey(name="bob", id="key:bob", digest=digest("other"))])
        await admit("model")
        key = admitted_call().key
        assert key is not None
        assert key.name == "alice"

    called(ring, "sk", work)


def test_only_digests_are_kept_and_compared() -> None:
    key = ApiKey(name="alice", id="key:alice", digest=digest("sk-secret"))
    ring = KeyRing([key])
    assert ring.find(b"sk-secret") is key
    assert ring.find(b"sk-secre") is ring.find(b"") is ring.find(key.digest) is None
    assert "sk-secret" not in repr(vars(ring))


def test_an_expired_key_is_no_key() -> None:
    ring = KeyRing([ApiKey(name="a", id="a", digest=digest("sk"), expires=0.0)])
    assert ring
    assert ring.find(b"sk") is None


# ---- what calls take ---------------------------------------------------------------------

KEY = ApiKey(name="alice", id="key:alice", digest=digest("sk"))
NOW = 1000.0


class Scene:
    """The admission of a server whose clock stands still, and a key."""

    def __init__(self, store: BucketStore | None = None, usage_db: str = "", **limits: int) -> None:
        self.key = msgspec.structs.replace(KEY, **limits)
        self.admission = Admission(store or MemoryBuckets(lambda: NOW), UsageLog(usage_db))

    async def call(self, leases: ExitStack, n_tokens: int = 0) -> AdmittedCall:
        call = AdmittedCall(self.admission, self.key, "model")
        await self.admission.admit(call, leases, n_tokens)
        return call

    async def refusal(self, n_tokens: int = 0) -> ErrorInfo:
        """Returns the error for a call that isn't admitted."""
        with ExitStack() as leases, pytest.raises(EngineError) as caught:
            await self.call(leases, n_tokens)
        return caught.value.info

    async def levels(self) -> list[float]:
        while self.admission._tasks:
            await asyncio.wait(self.admission._tasks)
        demands = [Demand.owed(each, 0) for each in buckets_of(self.key)]
        return (await self.admission.take(demands)).levels

    async def usage(self) -> Usage:
        [row] = await self.admission.usage.rows(UsageQuery())
        assert (row.key, row.model) == ("alice", "model")
        return row.usage


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of calls and balances, which a test turns forward."""
    time = [NOW]
    monkeypatch.setattr(system, "now", lambda: time[0])
    return time


def used(n_prompt: int, n_predicted: int = 0, n_cached: int = 0) -> Timings:
    return Timings(n_cached, n_prompt, 0.0, n_predicted, 0.0)


def metered(call: AdmittedCall, n_texts: int = 1) -> Meter:
    meter = call.meter(n_texts)
    assert meter is not None
    return meter


def test_requests_of_a_minute() -> None:
    async def work() -> None:
        scene = Scene(requests_per_minute=2)
        for _ in range(2):
            with ExitStack() as leases:
                await scene.call(leases)
        info = await scene.refusal()
        assert (info.type, info.retry_after) == ("rate_limit_error", 30)
        assert "2 requests per minute" in info.message
        assert await scene.levels() == [0]
        assert await scene.usage() == Usage(requests=2, refused=1)

    asyncio.run(work())


def test_running_calls() -> None:
    async def work() -> None:
        scene = Scene(concurrency=2)
        with ExitStack() as leases:
            for _ in range(2):
                await scene.call(leases)
            info = await scene.refusal()
            assert info.type == "rate_limit_error"
            assert info.retry_after >= 1
            assert "2 running requests" in info.message
        with ExitStack() as leases:
            await scene.call(leases)
        assert not len(scene.admission._running), "nothing is left of a key without calls"

    asyncio.run(work())


def test_the_engine_learns_of_the_only_call_of_a_key() -> None:
    async def work() -> None:
        scene = Scene()
        for _ in range(2):
            with ExitStack() as leases:
                first, second = await scene.call(leases), await scene.call(leases)
                assert first.limited(NO_TERMS).is_only
                assert not second.limited(NO_TERMS).is_only
        anonymous = AdmittedCall(scene.admission, None, "model")
        with ExitStack() as leases:
            await scene.admission.admit(anonymous, leases)
            assert not anonymous.limited(NO_TERMS).is_only

    asyncio.run(work())


def test_a_running_call_is_expected_to_last_for_as_long_as_it_has_lasted(
    now: list[float],
) -> None:
    async def work() -> None:
        scene = Scene(concurrency=2)
        with ExitStack() as leases:
            await scene.call(leases)
            now[0] += 20
            await scene.call(leases)
            now[0] += 40
            assert (await scene.refusal()).retry_after == 25  # half of the mean of 60 and 40

    asyncio.run(work())


def test_what_is_left_and_when_it_is_whole_again(now: list[float]) -> None:
    async def work() -> None:
        scene = Scene(requests_per_minute=4, tokens_per_minute=120, tokens_per_day=86_400)
        with ExitStack() as leases:
            call = await scene.call(leases)
            metered(call).accepted(30)
            await call.reserved()
            assert call.balance is not None
            assert call.balance.rate_limits() == [
                RateLimit("requests", 4, 3, 15.0),
                RateLimit("tokens", 120, 90, 15.0),
            ]
            now[0] += 7.5
            assert call.balance.rate_limits() == [
                RateLimit("requests", 4, 3, 7.5),
                RateLimit("tokens", 120, 105, 7.5),
            ]

    asyncio.run(work())


def test_a_call_beyond_the_concurrency_reports_the_quotas() -> None:
    key = msgspec.structs.replace(KEY, concurrency=1, requests_per_minute=5)

    async def work() -> None:
        admission: Admission = current.current_scope()["state"]["runtime"].admission
        with ExitStack() as leases:
            await admission.admit(AdmittedCall(admission, key, "model"), leases)
            with pytest.raises(EngineError):
                await admit("model")
            (limit,) = await rate_limits(current.current_scope())
            assert (limit.kind, limit.limit, limit.remaining) == ("requests", 5, 4)

    called(KeyRing([key]), "sk", work)


def test_a_text_gives_back_what_it_has_not_used() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_minute=100, tokens_per_day=1000)
        with ExitStack() as leases:
            call = await scene.call(leases)
            assert call.limited(NO_TERMS).allowance == 100
            meter = metered(call)
            meter.accepted(60)
            await call.reserved()
            assert call.balance is not None
            assert [each.remaining for each in call.balance.rate_limits()] == [40]
            meter.ended(used(10, 5, n_cached=80))
        assert await scene.levels() == [85, 985]
        expected = Usage(requests=1, prompt_tokens=90, cached_tokens=80, generated_tokens=5)
        assert await scene.usage() == expected

    asyncio.run(work())


def test_a_text_that_ends_gives_back_nothing_of_the_others() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_minute=100)
        with ExitStack() as leases:
            call = await scene.call(leases)
            meter = metered(call, 2)
            for _ in range(2):
                meter.accepted(30)
            await call.reserved()
            meter.ended(used(10))
            assert await scene.levels() == [60]
            meter.ended(used(30))
        assert await scene.levels() == [60]

    asyncio.run(work())


def test_a_text_that_ends_before_its_tokens_are_taken_costs_what_it_used() -> None:
    """The store may be slower than a short text."""

    async def work() -> None:
        scene = Scene(tokens_per_minute=100)
        with ExitStack() as leases:
            meter = metered(await scene.call(leases), 2)
            for _ in range(2):
                meter.accepted(30)
            meter.ended(used(10))
            assert await scene.levels() == [60]
            meter.ended(used(30))
        assert await scene.levels() == [60]

    asyncio.run(work())


@pytest.mark.parametrize("is_kept", [False, True])
def test_usage_is_counted_once_and_exactly_if_it_is_kept(is_kept: bool, tmp_path: Path) -> None:
    """Without a meter, the last known timings count, which a cancelled text may not have."""

    async def work() -> None:
        scene = Scene(usage_db=str(tmp_path / "usage.db") if is_kept else "")
        with ExitStack() as leases:
            call = await scene.call(leases)
            meter = call.meter()
            assert (meter is not None) == is_kept
            if meter is not None:
                meter.accepted(20)
                meter.ended(used(10, 5))
            call.count_unmetered([used(10, 5), None])
        expected = Usage(requests=1, prompt_tokens=10, generated_tokens=5)
        assert await scene.usage() == expected
        await scene.admission.close()

    asyncio.run(work())


def test_a_text_that_may_use_too_much_is_cancelled() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_minute=100)
        with ExitStack() as leases:
            first, second = await scene.call(leases), await scene.call(leases)
            failed: list[EngineError] = []
            second.on_refusal = failed.append
            metered(first).accepted(60)
            meter = metered(second)
            meter.accepted(60)
            await first.reserved()
            with pytest.raises(EngineError, match="may use 60 tokens, and 40 are left") as caught:
                await second.reserved()
            assert failed == [caught.value]
            assert caught.value.info.retry_after == 12
            assert await scene.levels() == [40]
            meter.ended(used(3))  # what it used before the cancellation
        assert await scene.levels() == [37]
        assert (await scene.usage()).refused == 1

    asyncio.run(work())


def test_a_text_that_can_never_be_paid_is_refused_for_good() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_day=100)
        with ExitStack() as leases:
            call = await scene.call(leases)
            meter = metered(call)
            meter.accepted(101)
            with pytest.raises(EngineError, match="more than the limit") as caught:
                await call.reserved()
            meter.ended(None)
        assert caught.value.info.final
        assert not caught.value.info.retry_after
        assert await scene.levels() == [100]

    asyncio.run(work())


def test_an_estimate_is_held_until_the_texts_are_accepted() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_minute=100)
        with ExitStack() as leases:
            call = await scene.call(leases, 70)
            assert call.limited(NO_TERMS).allowance == 100
            assert (await scene.refusal(31)).retry_after == 1
            meter = metered(call)
            meter.accepted(50)
            assert await scene.levels() == [30]
            meter.accepted(40)
            assert await scene.levels() == [10]
            meter.ended(used(90))
        assert await scene.levels() == [10]
        with ExitStack() as leases:
            await scene.call(leases, 10)
        assert await scene.levels() == [10], "of a call without texts, nothing is left"
        assert (await scene.refusal(101)).final

    asyncio.run(work())


def test_an_empty_bucket_refuses_before_the_engine_does() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_minute=100)
        with ExitStack() as leases:
            metered(await scene.call(leases)).ended(used(160))
        assert await scene.levels() == [-60]
        info = await scene.refusal()
        assert (info.type, info.retry_after) == ("rate_limit_error", 37)  # 61 tokens

    asyncio.run(work())


class BrokenStore(MemoryBuckets):
    async def take(self, demands: Sequence[Demand]) -> Taken:
        raise UnavailableStoreError("out of order")


def test_a_store_that_fails_refuses(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        scene = Scene(BrokenStore(), requests_per_minute=1)
        info = await scene.refusal()
        assert info.type == "unavailable_error"
        assert "out of order" in caplog.text
        assert "out of order" not in info.message

    asyncio.run(work())


def test_the_engines_refusal_gets_the_time_of_a_retry() -> None:
    async def work() -> None:
        scene = Scene(tokens_per_minute=60)
        with ExitStack() as leases:
            call = await scene.call(leases)
            meter = metered(call)
            meter.accepted(60)
            await call.reserved()
            other = call.explained(EngineError.of("server_error", "other"))
            assert other.info.message == "other"
            refused = EngineError(ErrorInfo("rate_limit_error", "too many tokens", n_tokens=30))
            info = call.explained(refused).info
            assert info.retry_after == 30
            assert "may use 30 tokens, and 0 are left" in info.message
            meter.ended(used(60))
        assert (await scene.usage()).refused == 1

    asyncio.run(work())


TEXT = st.tuples(st.integers(0, 40), st.floats(0, 1), st.booleans())
CALL = st.lists(TEXT, min_size=1, max_size=4)


@given(st.integers(1, 120), st.lists(CALL, min_size=1, max_size=8), st.randoms())
def test_concurrent_calls_use_at_most_the_limit_and_leave_no_trace(
    limit: int, calls: list[list[tuple[int, float, bool]]], random: Random
) -> None:
    """However calls with several texts overlap, the bucket has at the end what wasn't used."""

    async def one(scene: Scene, texts: list[tuple[int, float, bool]]) -> int:
        n_used = 0
        with ExitStack() as leases:
            try:
                call = await scene.call(leases)
            except EngineError:
                return 0
            meter = metered(call, len(texts))
            for n, _, is_accepted in texts:
                await pause()
                if is_accepted:
                    meter.accepted(n)
            with suppress(EngineError):
                await call.reserved()
            for n, share, is_accepted in texts:
                await pause()
                n_text = int(share * n) if is_accepted and call._refusal is None else 0
                meter.ended(used(n_text) if n_text else None)
                n_used += n_text
        return n_used

    async def pause() -> None:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)

    async def run() -> None:
        scene = Scene(tokens_per_minute=limit)
        total = sum(await asyncio.gather(*(one(scene, texts) for texts in calls)))
        assert total <= limit
        assert await scene.levels() == pytest.approx([limit - total])

    asyncio.run(run())
