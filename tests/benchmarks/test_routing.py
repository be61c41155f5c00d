"""The simulation of the choice of a replica: small runs of it, and its parts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routing import COLUMNS, Plan, Result, cells, choice_seconds, main
from benchmarks.routing_replicas import Cache, Replica, Speed
from benchmarks.routing_requests import Conversations, Habits, Request, read_trace

SPEED = Speed()
PLAN = Plan(SPEED, seed=3, delay=0.05, warm_up=5.0)
HABITS = Habits(n_tenants=12)
N = 4
TOLERANCE = 1e-6


def requests(load: float = 1.0) -> list[Request]:
    return PLAN.generated(HABITS, N, load, seconds=15.0)


def figures(result: Result) -> list[str]:
    return [*cells(result), str(len(result.done))]


@pytest.mark.parametrize("name", PLAN.policies(1, 1.0))
def test_each_request_gets_one_whole_answer(name: str) -> None:
    sent = requests()
    result = PLAN.run(sent, PLAN.policies(N, 1.0)[name], N)
    measured = [each for each in sent if each.at >= PLAN.warm_up]
    assert len({id(each.request) for each in result.done}) == len(result.done) == len(measured)
    for each in result.done:
        request = each.request
        assert 0 <= each.n_cached < request.n_tokens
        assert each.n_cached <= request.n_blocks * SPEED.block
        alone = (request.n_tokens - each.n_cached) * SPEED.prompt
        assert each.began - request.at >= alone - TOLERANCE
        answer = request.n_answer * SPEED.of_step(1)
        assert each.ended - each.began >= answer - TOLERANCE
    assert all(0 <= busy <= result.seconds + TOLERANCE for busy in result.busy)
    assert len(cells(result)) == len(COLUMNS)


def test_all_work_is_done_once() -> None:
    """One text at a time: the time of a replica is the sum of its texts' times."""
    speed = replace(SPEED, n_slots=1)
    plan = replace(PLAN, speed=speed, warm_up=0.0)
    sent = [replace(each, at=100.0 * i) for i, each in enumerate(requests()[:20])]
    last = replace(sent[-1], at=100.0 * len(sent), n_answer=1)
    result = plan.run([*sent, last], plan.policies(N, 1.0)["round robin"], N)
    done = [each for each in result.done if each.request is not last]
    work = sum(
        (each.request.n_tokens - each.n_cached) * speed.prompt
        + each.request.n_answer * speed.of_step(1)
        for each in done
    )
    assert sum(result.busy) == pytest.approx(work)


def test_a_seed_determines_the_figures() -> None:
    first, again = (PLAN.run(requests(), PLAN.ours(N, 1.0), N) for _ in range(2))
    other = replace(PLAN, seed=4)
    others = other.generated(HABITS, N, 1.0, seconds=15.0)
    assert figures(first) == figures(again)
    assert figures(first) != figures(other.run(others, other.ours(N, 1.0), N))


def test_ours_finds_more_in_caches_than_power_of_two() -> None:
    sent = requests()
    ours = PLAN.run(sent, PLAN.ours(N, 1.0), N)
    other = PLAN.run(sent, PLAN.policies(N, 1.0)["power of two"], N)
    assert ours.cached > other.cached + 0.1
    assert ours.first_token(0.5) < other.first_token(0.5)
    assert ours.utilisation < other.utilisation


# ---- requests ---------------------------------------------------------------------------


def test_texts_of_a_conversation_grow() -> None:
    conversations = Conversations(replace(HABITS, bursts=0.0), SPEED.block, seed=1)
    turns = next(found for _ in range(20) if len(found := conversations.conversation(0.0)) > 2)
    for before, after in pairwise(turns):
        assert after.at > before.at
        assert after.n_tokens > before.n_tokens + before.n_answer
        assert [*after.blocks][: before.n_after] == [*before.text[: before.n_after]]


def test_conversations_of_a_tenant_have_its_system_prompt_in_common() -> None:
    habits = replace(HABITS, n_tenants=1, system=(1000, 1000), bursts=0.0)
    conversations = Conversations(habits, SPEED.block, seed=1)
    first, second = (conversations.conversation(0.0)[0].blocks for _ in range(2))
    n_system = 1000 // SPEED.block
    assert first[:n_system] == second[:n_system]
    assert not {*first[n_system:]} & {*second[n_system:]}


def test_a_burst_has_one_document() -> None:
    habits = replace(HABITS, bursts=1.0)
    burst = Conversations(habits, SPEED.block, seed=1).conversation(7.0)
    assert len(burst) == habits.questions
    assert all(7 <= each.at <= 7 + habits.burst_seconds for each in burst)
    common = set[int].intersection(*({*each.blocks} for each in burst))
    assert common
    assert all(each.n_blocks - len(common) < 20 for each in burst)


def test_the_load_is_the_work_without_caches() -> None:
    plan = replace(PLAN, warm_up=0.0)
    sent = plan.generated(replace(HABITS, pause=0.1), 10, load=0.5, seconds=200.0)
    work = sum(map(SPEED.alone, sent))
    assert work / (10 * 200) == pytest.approx(0.5, rel=0.1)


def line(at: float, blocks: Sequence[int], **others: int) -> str:
    return json.dumps({"at": at, "n_tokens": 200, "n_answer": 3, "blocks": blocks, **others}) + "\n"


def test_a_trace_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line(2.0, [1, 2, 3]) + line(1.0, [1, 2, 4], conversation=7) + line(3.0, [2, 2]))
    first, second, third = read_trace(path)
    assert (first.at, first.n_tokens, first.n_answer, first.conversation) == (1.0, 200, 3, 7)
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert first.blocks[1] != third.blocks[1]  # the block before it differs
    assert second.conversation != third.conversation
    main(["--trace", str(path), "--replicas", "2", "--ages", "2"])
    assert "2 replicas, 3 requests" in capsys.readouterr().out


# ---- replicas ---------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=40))
def test_reported_changes_are_those_of_the_cache(texts: list[tuple[int, int]]) -> None:
    cache, known = Cache(10), set[int]()
    for i, (text, n) in enumerate(texts):
        cache.put([10 * text + j for j in range(n)])
        assert len(cache) <= 10
        if i % 3 == 0:
            added, removed = cache.changes()
            assert removed <= known
            assert not added & known
            known = known - removed | added
            held = [text for text in range(4) for j in range(10) if 10 * text + j in known]
            assert len(held) == len(cache)
            for each in range(4):  # only beginnings
                blocks = [10 * each + j for j in range(10)]
                assert cache.n_held(blocks) == held.count(each)


def test_common_beginnings_of_waiting_prompts_count_once() -> None:
    replica = Replica(0, SPEED)
    text = [*range(20)]
    for i in range(3):
        own = [*text, 100 + i]
        replica.start(Request(0.0, 21 * SPEED.block, 5, own, 21, 21, i), 0.0)
    assert replica.load(0.0).n_tokens_waiting == 23 * SPEED.block


def test_a_full_replica_reports_a_wait() -> None:
    replica = Replica(0, replace(SPEED, n_slots=2))
    loads = []
    for i in range(4):
        replica.start(Request(0.0, 100, 5, [i], 1, 1, i), 0.0)
        loads.append(replica.load(0.0))
    assert [each.n_busy for each in loads] == [1, 2, 2, 2]
    assert [each.n_waiting for each in loads] == [0, 0, 1, 2]
    waits = [each.wait_seconds for each in loads]
    assert waits[0] == 0
    assert waits[0] < waits[1] < waits[2] < waits[3]


def test_times_of_choices_are_measured() -> None:
    assert choice_seconds(20, 8, seed=1, n_choices=2) >= 0
