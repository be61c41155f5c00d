"""Steps and the encoder in turns on one device."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.worker.media.encoder import SLICE_SECONDS, DeviceSlices


class Encoder:
    """Encodes in a thread, one slice per command; a slice takes `seconds` of a fake clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = SLICE_SECONDS
        self.turns = DeviceSlices(lambda: self.now)
        self.operations: list[int] = []
        self.in_slice = False
        self._stop = False
        self._may = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with self.turns.encode():
            while not self._stop:
                n = self.turns.next_slice()
                self.operations.append(n)
                self.in_slice = True
                self._begun.release()
                assert self._may.acquire(timeout=SECONDS)
                self.in_slice = False
                self.now += self.seconds

    def start(self) -> None:
        self._thread.start()
        self.begins()

    def begins(self) -> None:
        assert self._begun.acquire(timeout=SECONDS)

    def go_on(self, n: int = 1) -> None:
        """Let `n` slices come to their ends."""
        self._may.release(n)

    def end(self) -> None:
        self._stop = True
        self.go_on()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@contextmanager
def stepping(encoder: Encoder, allowed: float) -> Iterator[threading.Event]:
    """A step in a thread of its own, which goes on until the block ends; set once it has its
    turn."""
    has_turn, may_end = threading.Event(), threading.Event()

    def step() -> None:
        with encoder.turns.step(allowed):
            assert not encoder.in_slice
            has_turn.set()
            may_end.wait(SECONDS)

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    while not (encoder.turns._wanted or encoder.turns._stepping):
        time.sleep(0.001)
    yield has_turn
    may_end.set()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


def test_without_anything_to_encode_a_step_has_its_turn_at_once() -> None:
    turns = DeviceSlices()
    for _ in range(3):
        with turns.step(1000.0):
            pass


def test_the_encoder_runs_between_steps(encoder: Encoder) -> None:
    encoder.start()
    for _ in range(20):
        encoder.go_on()
        encoder.begins()
    encoder.end()


def test_a_step_waits_only_for_its_allowed_slices(encoder: Encoder) -> None:
    encoder.start()
    with stepping(encoder, 2.5 * SLICE_SECONDS) as has_turn:
        for _ in range(2):
            encoder.go_on()
            encoder.begins()
            assert not has_turn.is_set()
        encoder.go_on()
        assert has_turn.wait(SECONDS)
        assert len(encoder.operations) == 3  # the fourth one waits
    encoder.begins()
    encoder.end()


def test_a_step_that_allows_nothing_waits_for_one_slice(encoder: Encoder) -> None:
    encoder.start()
    with stepping(encoder, 0.0) as has_turn:
        assert not has_turn.is_set()
        encoder.go_on()
        assert has_turn.wait(SECONDS)
        assert len(encoder.operations) == 1
    encoder.begins()
    encoder.end()


def test_the_excess_of_a_slice_is_taken_from_the_next_ones(encoder: Encoder) -> None:
    encoder.start()
    encoder.seconds = 3 * SLICE_SECONDS
    with stepping(encoder, 2 * SLICE_SECONDS) as has_turn:
        encoder.go_on()
        assert has_turn.wait(SECONDS)
    encoder.begins()
    encoder.seconds = SLICE_SECONDS
    with stepping(encoder, 2 * SLICE_SECONDS) as has_turn:
        encoder.go_on()
        assert has_turn.wait(SECONDS)  # after one slice of two
        assert len(encoder.operations) == 2
    encoder.begins()
    encoder.end()


def test_unused_time_expires(encoder: Encoder) -> None:
    for _ in range(100):
        with encoder.turns.step(SLICE_SECONDS):
            pass
    encoder.start()
    with stepping(encoder, SLICE_SECONDS) as has_turn:
        encoder.go_on()
        assert has_turn.wait(SECONDS)
        assert len(encoder.operations) == 1
    encoder.begins()
    encoder.end()


def test_a_step_does_not_wait_for_finished_work(encoder: Encoder) -> None:
    encoder.start()
    with stepping(encoder, 1000.0) as has_turn:
        encoder.end()
        assert has_turn.wait(SECONDS)


def test_a_failure_gives_the_turn_back() -> None:
    turns = DeviceSlices()

    def fail() -> int:
        turns.next_slice()
        raise RuntimeError

    with pytest.raises(RuntimeError), turns.encode():
        fail()
    with pytest.raises(RuntimeError), turns.step(1000.0):
        raise RuntimeError
    with turns.encode():
        turns.next_slice()


@pytest.mark.parametrize("seconds", [SLICE_SECONDS / 100, SLICE_SECONDS * 100])
def test_slices_take_about_as_long_as_they_should(seconds: float, encoder: Encoder) -> None:
    """Operations that take this many seconds for eight tokens."""
    encoder.seconds = seconds
    encoder.start()
    for _ in range(12):
        encoder.seconds = encoder.operations[-1] * seconds / 8
        encoder.go_on()
        encoder.begins()
    n = encoder.operations[-1]
    wanted = max(1.0, 8 * SLICE_SECONDS / seconds)
    assert 0.9 * wanted < n < 1.1 * wanted
    encoder.end()
