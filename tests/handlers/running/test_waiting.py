"""The limits for the calls of all models that wait, with a virtual clock."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.handlers.running.waiting import CallPlace, WaitingCalls

SLOTS = {"a": 2, "b": 1}  # "c" isn't loaded


def line(max_calls: int = 0, max_tokens: int = 0, *, until_begun: bool = True) -> WaitingCalls:
    return WaitingCalls(
        max_calls, max_tokens, until_begun=until_begun, n_slots=lambda model: SLOTS.get(model, 0)
    )


def refused(waiting: WaitingCalls, model: str, owner: int = 0) -> ErrorInfo:
    with ExitStack() as leases, pytest.raises(EngineError) as caught:
        waiting.enter(model, leases, owner)
    return caught.value.info


def check_empty(waiting: WaitingCalls) -> None:
    left = (waiting._waiting, waiting._running, waiting._n_waiting, waiting._n_running)
    assert not any(left)
    assert not waiting._n_open
    assert waiting._n_tokens == 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [1000.0]
    monkeypatch.setattr(system, "now", lambda: time[0])
    return time


def test_the_sum_over_all_models_is_limited(now: list[float]) -> None:
    waiting = line(2)
    with ExitStack() as leases:
        places = [waiting.enter(model, leases) for model in "aabcc"]
        assert "2 requests wait" in refused(waiting, "a").message
        info = refused(waiting, "c")
        assert (info.type, info.retry_after) == ("unavailable_error", 1)
        assert "--max-queue is 2" in info.message
        now[0] += 30
        assert refused(waiting, "c").retry_after == 30, "so long without any that began"
        places[0].begin()
        places[2].begin()
        places[2].begin()
        assert (info := refused(waiting, "b")).retry_after == 15
        assert info.estimated_wait_ms == 15_000
        assert waiting.n_refused == {"a": 1, "b": 1, "c": 2}
        places[4].begin()
        waiting.enter("b", leases)
    check_empty(waiting)


def test_a_call_with_a_slot_never_waits(now: list[float]) -> None:
    waiting = line(1)
    with ExitStack() as leases:
        waiting.enter("c", leases)
        refused(waiting, "c")
        for model in "aab":
            waiting.enter(model, leases)
        refused(waiting, "b")


def test_in_a_server_of_one_model_the_engine_limits_what_it_has(now: list[float]) -> None:
    waiting = line(1, 10, until_begun=False)
    with ExitStack() as leases:
        place = waiting.enter("c", leases)
        refused(waiting, "c")
        place.leased()
        place.expect(1000)
        waiting.enter("c", leases)
    several = line(1)
    with ExitStack() as leases:
        several.enter("c", leases).leased()
        refused(several, "c")


def test_the_sum_of_tokens_is_limited(now: list[float]) -> None:
    waiting = line(max_tokens=100)
    with ExitStack() as leases:
        large = waiting.enter("c", leases)
        large.expect(1000)
        now[0] += 10
        with ExitStack() as later:
            second = waiting.enter("c", later)
            with pytest.raises(EngineError) as caught:
                second.expect(20)
            info = caught.value.info
            assert "about 1000 tokens" in info.message
            assert "--max-queue-tokens is 100" in info.message
            assert info.retry_after == 10
        waiting.enter("a", leases).expect(20)  # a slot is free
        large.expect(80)
        assert waiting._n_tokens == 100
        large.begin()
        large.expect(1000)
        waiting.enter("c", leases).expect(80)
    assert waiting._n_tokens == 0


def test_the_only_call_of_a_key_is_never_refused(now: list[float]) -> None:
    waiting = line(1, 100)
    with ExitStack() as leases:
        waiting.enter("c", leases, 1).expect(1000)
        refused(waiting, "c")
        refused(waiting, "c", 1)
        with ExitStack() as later:
            only = waiting.enter("c", later, 2)
            assert only.is_only
            only.expect(1000)
            refused(waiting, "c", 2)
            only.begin()
            refused(waiting, "c", 2)
        assert waiting.enter("c", leases, 2).is_only, "the other one has ended"
    check_empty(waiting)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "begin", "end"]))),
)
def test_histories(limit: int, history: list[tuple[str, str]]) -> None:
    """Beyond the slots, never more than the limit wait; what has ended leaves nothing."""
    waiting = line(limit, limit * 10)
    calls: list[tuple[CallPlace, ExitStack]] = []
    for model, action in history:
        if action == "enter":
            leases = ExitStack()
            try:
                place = waiting.enter(model, leases)
                calls.append((place, leases))
                place.expect(7)
            except EngineError:
                leases.close()
                calls = [each for each in calls if each[1] is not leases]
        elif calls and action == "begin":
            calls[0][0].begin()
        elif calls:
            calls.pop(0)[1].close()
        excess = {each: waiting._excess(each) for each in "abc"}
        # A slot that is occupied meanwhile by a call that began makes no other call wait.
        assert sum(excess.values()) <= limit + sum(SLOTS.values())
        assert len(waiting._waiting) + len(waiting._running) == len(calls)
    for _, leases in calls:
        leases.close()
    check_empty(waiting)
