"""When a dead engine process is replaced."""

import signal
from importlib.metadata import version
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.models.lifecycle import BACKOFF, STABLE_SECONDS, ProcessLife, Restarts
from specllama.engine.wire.commands import (
    STACKS_SIGNAL,
    STUCK,
    describe_exit,
    explain_exit,
    is_illegal_instruction,
)

SERVED = ProcessLife(ready=True, served=True)
LONG = ProcessLife(ready=True, seconds=STABLE_SECONDS)
USELESS = ProcessLife(ready=True)
UNREADY = ProcessLife()


@st.composite
def lives(draw: st.DrawFn) -> ProcessLife:
    ready = draw(st.booleans())
    return ProcessLife(
        ready=ready,
        served=ready and draw(st.booleans()),
        seconds=draw(st.floats(0, 1e6)) if ready else 0.0,
        illegal=draw(st.booleans()),
    )


legal = lives().map(lambda life: ProcessLife(life.ready, life.served, life.seconds))


def waits(history: list[ProcessLife]) -> list[float | None]:
    restarts = Restarts()
    return [restarts.after(life) for life in history]


@given(st.lists(st.sampled_from([SERVED, LONG]), min_size=1, max_size=100))
def test_who_served_comes_back_at_once_however_often(history: list[ProcessLife]) -> None:
    assert set(waits(history)) == {0.0}


@given(st.lists(legal, max_size=20))
def test_a_process_that_served_is_restarted_at_once(history: list[ProcessLife]) -> None:
    assert waits([*history, SERVED])[-1] == 0.0
    assert waits([*history, SERVED, USELESS])[-1] == BACKOFF[0]


@given(st.lists(st.sampled_from([USELESS, UNREADY]), min_size=1, max_size=20))
def test_the_others_wait_ever_longer(history: list[ProcessLife]) -> None:
    found = waits([SERVED, *history])[1:]
    known = [wait for wait in found if wait is not None]
    assert known == found
    assert all(before <= after for before, after in pairwise(known))
    assert known[: len(BACKOFF)] == list(BACKOFF[: len(known)])
    assert set(known[len(BACKOFF) :]) <= {BACKOFF[-1]}


@given(st.lists(lives(), min_size=1, max_size=20))
def test_a_model_that_never_loaded_is_not_retried(history: list[ProcessLife]) -> None:
    n = next((n for n, life in enumerate(history) if life.ready), len(history))
    assert waits(history)[:n] == [None] * n


@given(st.lists(lives(), max_size=20))
def test_an_illegal_instruction_is_never_repeated_for_ever(history: list[ProcessLife]) -> None:
    illegal = ProcessLife(ready=True, illegal=True)
    assert waits([*history, ProcessLife(illegal=True)])[-1] is None
    assert waits([*history, illegal, illegal])[-1] is None
    # By accident, as it seems: it had served before.
    accident = ProcessLife(ready=True, served=True, illegal=True)
    assert waits([*history, accident])[-1] == 0.0
    assert waits([*history, accident, illegal])[-1] is None
    assert waits([*history, SERVED, illegal])[-1] == BACKOFF[0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "ended with code 0"),
        (3, "ended with code 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-99, "was ended by signal 99"),
    ],
)
def test_how_a_process_ended(code: int, expected: str) -> None:
    assert describe_exit(code) == expected
    assert explain_exit(code, "at night") == f"{expected} at night"
    assert not is_illegal_instruction(code)


def test_a_stuck_process_is_reported() -> None:
    assert explain_exit(STUCK, "at night") == "ended itself, as a computation did not end at night"
    if STACKS_SIGNAL is not None:
        assert explain_exit(-STACKS_SIGNAL) == "was ended, as it gave no sign of life"


@pytest.mark.parametrize("code", [-signal.SIGILL, 0xC000001D])
def test_an_illegal_instruction_comes_with_advice(code: int) -> None:
    text = explain_exit(code, "while it loaded the model")
    assert " while it loaded the model: this llama.cpp was built for another processor" in text
    pinned = f"llama-cpp-python=={version('llama-cpp-python')}"
    assert text.endswith(
        f'CMAKE_ARGS="-DGGML_NATIVE=OFF" pip install --no-cache-dir --force-reinstall {pinned}'
    )
