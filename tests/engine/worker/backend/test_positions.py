"""Positions of tokens where images share them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.backend.positions import Positions, Run


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    """Some runs of a text, with tokens in between or without."""
    found, end = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = end + draw(st.integers(0, 3))
        end = start + draw(st.integers(1, 6))
        n_pos = draw(st.integers(1, end - start))
        found.append(Run(start, end, n_pos, draw(st.integers(0, n_pos - 1))))
    return found


def positions_of(text: list[Run]) -> Positions:
    positions = Positions()
    for run in text:
        positions.add(1, run)
    return positions


def outside(text: list[Run], n: int) -> list[int]:
    """The numbers up to `n` that are not inside of a run."""
    return [i for i in range(n + 1) if not any(run.start < i < run.stop for run in text)]


@given(runs(), st.integers(0, 5))
def test_numbers_and_positions(text: list[Run], more: int) -> None:
    positions, n = positions_of(text), (text[-1].stop if text else 0) + more
    borders = outside(text, n)
    wanted, at = {}, 0
    for number in range(n + 1):
        wanted[number] = at
        run = next((run for run in text if run.start <= number < run.stop), None)
        at += 1 if run is None else run.n_pos if number == run.stop - 1 else 0
    assert [positions.of(1, number) for number in borders] == [wanted[i] for i in borders]
    for number in borders:
        assert positions.number(1, wanted[number]) == number
    for position in range(wanted[n]):
        first = positions.number(1, position)
        assert first in borders
        assert wanted[first] >= position
        assert all(wanted[i] < position for i in borders if i < first)
    last_position = (
        wanted[n] - 1 if more else wanted[text[-1].start] + text[-1].last if text else -1
    )
    assert positions.end(1, last_position) == n
    behind = np.arange(n, n + 3, dtype=np.int32)
    sequences = np.array([1, 0, 1], np.int32)
    translated = positions.translated(behind, sequences).tolist()
    assert translated == [wanted[n], n + 1, wanted[n] + 2]


@given(runs())
def test_cut_and_copied(text: list[Run]) -> None:
    positions, n = positions_of(text), text[-1].stop if text else 0
    for number in outside(text, n):
        at = positions.of(1, number)
        positions.copy(1, 2, number)
        assert positions.of(2, number) == at
        assert positions.of(2, number + 7) == at + 7
        positions.cut(2, 0)
        assert positions.of(2, n) == n
    positions.clear()
    assert positions.of(1, n) == n


@given(runs(), st.binary(max_size=9))
def test_saved_and_loaded(text: list[Run], state: bytes) -> None:
    positions, cells = positions_of(text), np.frombuffer(state, np.uint8)
    saved = np.concatenate((cells, positions.dump(1)))
    assert len(saved) == len(cells) + positions.size(1)
    rest = positions.load(3, saved)
    assert rest is not None
    assert rest.tobytes() == state
    assert positions.dump(3).tobytes() == positions.dump(1).tobytes()


@given(st.binary(max_size=60))
def test_any_bytes_are_loaded_or_refused(state: bytes) -> None:
    positions = Positions()
    rest = positions.load(0, np.frombuffer(state, np.uint8))
    assert rest is None or len(rest) + positions.size(0) == len(state)


def test_a_run_in_pieces() -> None:
    positions = Positions()
    for stop in (5, 8, 20):
        positions.add(0, Run(2, stop, 4, 0))
        assert positions.of(0, stop) == 6
        assert positions.end(0, 2) == stop
    assert positions.number(0, 3) == 20


@pytest.mark.parametrize("count", [-1, 1, 1 << 30])
def test_impossible_counts_are_refused(count: int) -> None:
    state = np.array([count], "<i4").view(np.uint8)
    assert Positions().load(0, state) is None
