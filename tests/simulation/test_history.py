"""Histories from seeds: none fails, each can be played again, and a fault of the past is found."""

import pytest
from llama_cpp import llama_cpp

from specllama.engine.worker.backend import Context
from tests.simulation.history import History, HistoryError

pytestmark = [pytest.mark.slow]

N_SEEDS = 40
FINDS = 100
"""Seeds within which a mutant is found."""


@pytest.mark.parametrize("first", range(0, N_SEEDS, 10))
def test_no_history_fails(first: int) -> None:
    for seed in range(first, first + 10):
        history = History(seed)
        history.run()
        assert history.requests.n >= 8


def test_a_history_is_played_again() -> None:
    stories = []
    for _ in range(2):
        history = History(4)
        history.run()
        stories.append(history.story)
    assert stories[0] == stories[1]


def is_found() -> bool:
    """True if a history fails."""
    for seed in range(FINDS):
        try:
            History(seed).run()
        except HistoryError:
            return True
    return False


def test_copies_that_are_put_off_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between separate caches, llama.cpp copies cells with the next decode: by then they may be
    those of another text."""
    n_copies = 0
    copy = Context.copy

    def put_off(context: Context, source: int, target: int, n: int, state: object = None) -> bool:
        nonlocal n_copies
        if context._unified or n < context.first_cut(source):
            return copy(context, source, target, n, state)  # type: ignore[arg-type]
        n_copies += 1
        llama_cpp.llama_memory_seq_cp(context._memory, source, target, 0, -1)
        if context.remove(target, n):
            return True
        context.remove(target, 0)
        return False

    monkeypatch.setattr(Context, "copy", put_off)
    assert is_found()
    assert n_copies
