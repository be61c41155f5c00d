"""The order of turns, by random histories."""

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.constraints.trial import FairQueue

HISTORIES = st.lists(st.sampled_from(["come", "come", "take", "go"]), max_size=200)


@given(HISTORIES)
def test_no_job_waits_for_all_earlier_ones(history: list[str]) -> None:
    turns: FairQueue[int, int] = FairQueue()
    waiting: dict[int, list[int]] = {}  # the order in which waiting ones are taken
    came = 0
    before: dict[int, int] = {}
    for event in [*history, *["take"] * len(history)]:
        if event == "come":
            before[came] = len(turns)
            turns.put(came, came)
            waiting[came] = []
            came += 1
        elif event == "go" and waiting:
            gone = list(waiting)[len(waiting) // 2]
            assert turns.remove(gone)
            assert not turns.remove(gone)
            del waiting[gone]
        elif event == "take":
            taken = turns.take()
            if taken is None:
                assert not waiting
                continue
            others = waiting.pop(taken)
            after = came - 1 - taken
            assert len(others) <= 2 * after + 1
            assert len(others) <= 2 * before[taken] + 1
            for each in waiting.values():
                each.append(taken)
        assert len(turns) == len(waiting)
    assert turns.take() is None


@given(st.integers(0, 500))
def test_who_comes_last_waits_for_one(n: int) -> None:
    turns: FairQueue[int, str] = FairQueue()
    for i in range(n):
        turns.put(i, "before")
    turns.put(n, "last")
    assert "last" in (turns.take(), turns.take())
