"""Fifty API keys, one of them hostile, on one model: shares, waits, slots in use, quotas."""

import pytest

from tests.simulation.many_keys import (
    BUSY,
    CHATS,
    HOSTILE,
    LIMITED,
    SEEDS,
    URGENT,
    deviation,
    excess,
    longest_wait,
    most,
    of,
    played,
    waits,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_follow_the_weights(seed: int) -> None:
    clients = of(played(seed), BUSY | HOSTILE)
    assert not any(each.n_starved for each in clients)
    assert deviation(played(seed)) <= 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_an_urgent_text_waits_for_one_step_and_its_prompt(seed: int) -> None:
    """There are fewer urgent texts than slots, so each finds one that can be preempted. If several
    come at once, they wait for each other's prompts."""
    crowd = played(seed)
    assert len(waits(crowd, URGENT)) > 200
    assert most(excess(crowd)) <= 0


def test_no_time_of_a_slot_is_lost() -> None:
    limited, free = played(1), played(1, is_limited=False)
    assert limited.slots_in_use >= 0.98 * free.slots_in_use
    assert free.slots_in_use > 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_no_compliant_key_waits_longer_than_the_bound(seed: int) -> None:
    for each in of(played(seed), CHATS):
        assert len(each.waits) == each.n_calls - each.n_refused > 0
        longest = most(wait.seconds for wait in each.waits)
        assert longest <= longest_wait(each.key, each.habit), each.key.name


def test_a_flood_delays_others_only_without_keys() -> None:
    limited, free = played(1), played(1, is_limited=False)
    for one, other in zip(of(limited, CHATS), of(free, CHATS), strict=True):
        assert one.n_calls == other.n_calls
    with_keys, without = (waits(crowd, CHATS) for crowd in (limited, free))
    assert most(each.seconds for each in with_keys) < most(each.seconds for each in without)


def check_limit(uses: list[tuple[float, int, int]], limit: int, period: float) -> None:
    """Checks the bound of docs/quotas.md: in any time, a key uses at most its limit for each
    period, one limit more, and what it had reserved before."""
    start = 0.0
    for at, n_used, n_reserved in uses:
        n_refilled = limit * at / period
        assert n_used - n_refilled - start <= limit + 1e-6
        start = min(start, n_used + n_reserved - n_refilled)


@pytest.mark.parametrize("seed", SEEDS)
def test_quotas_hold(seed: int) -> None:
    crowd = played(seed)
    for each in crowd.clients:
        key = each.key
        if limit := key.requests_per_minute:
            check_limit([(at, n, 0) for n, at in enumerate(each.requests, 1)], limit, 60.0)
        if limit := key.tokens_per_minute:
            check_limit(each.used, limit, 60.0)
        if limit := key.tokens_per_day:
            check_limit(each.used, limit, 86400.0)
    tokens = [each for each in of(crowd, LIMITED) if each.key.tokens_per_minute]
    assert all(each.n_refused for each in tokens)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left(seed: int) -> None:
    crowd = played(seed)
    queue = crowd.scheduler.slots.queue
    assert (queue.n_waiting, queue.n_tokens, queue.n_calls, queue._levels) == (0, 0, 0, {})
    assert not crowd.scheduler.active
    assert not len(crowd.admission._running)
    assert not crowd.admission._tasks
    for each in crowd.clients:
        assert (each.n_reserved, each.n_texts, each.calls) == (0, 0, set())
        if limit := each.key.tokens_per_day:
            level, _ = crowd.buckets._states[f"{each.key.id}:tokens per day"]
            assert level >= limit - each.n_used, "a text didn't give back what it hasn't used"
