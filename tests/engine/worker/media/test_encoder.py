"""The thread that encodes media."""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import PreparedChunk, Rows
from specllama.engine.worker.backend.watch import encoding
from specllama.engine.worker.media.encoder import EncodeOrder, MediaEncoder
from tests.support.media import image
from tests.support.watching import without_limits

N_EMBD = 4


class Projector:
    """Encodes a chunk as rows of its index, when it is allowed to."""

    def __init__(self) -> None:
        self.batch_tokens = 30
        self.at_once = 10
        self.calls: list[list[int]] = []
        self.offered: list[int] = []
        self.n_rests = self.rests_before = 0
        self.rested = threading.Condition()
        self.may = threading.Semaphore(1000)
        self.begun = threading.Semaphore(0)

    def encode(self, chunks: Sequence[PreparedChunk], next_slice: Callable[[], int]) -> list[Rows]:
        done = chunks[: self.at_once]
        self.offered.append(len(chunks))
        self.rests_before = self.n_rests
        self.calls.append([chunk.index for chunk in done])
        self.begun.release()
        assert self.may.acquire(timeout=SECONDS)
        assert next_slice()
        if 13 in [chunk.index for chunk in chunks]:
            raise BackendError("no luck")
        if 14 in [chunk.index for chunk in chunks]:
            raise RuntimeError("a bug")
        return [np.full((c.n_tokens, N_EMBD), c.index, np.float32) for c in done]

    def rest(self) -> None:
        with self.rested:
            self.n_rests += 1
            self.rested.notify()


class Stage:
    def __init__(self) -> None:
        self.projector = Projector()
        self._told = threading.Condition()
        self.encoder = self.new(1 << 20)

    def new(self, keep_bytes: int) -> MediaEncoder:
        self.encoder = MediaEncoder(self.projector, keep_bytes, self._tell)
        return self.encoder

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()

    def until(self, happened: Callable[[], bool]) -> None:
        with self._told:
            assert self._told.wait_for(happened, SECONDS)

    def order(self, index: int, owner: int = 1, n_tokens: int = 10) -> EncodeOrder:
        chunk = PreparedChunk(image(0), index, n_tokens, n_tokens, False)
        return self.encoder.order(owner, -index, chunk)

    def hold_up(self) -> None:
        """The projector begins with chunk 99, and continues on `go_on`."""
        self.projector.may = threading.Semaphore(0)
        self.order(99, owner=99)
        assert self.projector.begun.acquire(timeout=SECONDS)

    def go_on(self) -> None:
        self.projector.may.release(1000)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.go_on()
    stage.encoder.close()


def test_the_thread_is_watched_while_it_encodes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch, encoding)
    stage.hold_up()
    report = encoding.look(1.0)
    assert report is not None
    assert "media of 10 tokens has not ended" in report
    stage.go_on()
    stage.until(lambda: not stage.encoder._jobs)
    assert encoding.look(1.0) is None


def test_a_medium_is_encoded_once(stage: Stage) -> None:
    order = stage.order(1)
    stage.until(lambda: order.is_done)
    assert order.rows is not None
    assert order.rows.tolist() == [[1.0] * N_EMBD] * 10
    stage.encoder.release(order)
    again = stage.order(1, owner=2)
    assert again.rows is not None
    assert stage.projector.calls == [[1]]
    assert stage.encoder.n_encoded == 1
    assert stage.encoder.ids() == [-1]


def test_two_that_want_the_same_wait_together(stage: Stage) -> None:
    stage.hold_up()
    one, two = stage.order(5, owner=1), stage.order(5, owner=2)
    stage.encoder.release(one)
    stage.go_on()
    stage.until(lambda: two.is_done)
    assert one.rows is None
    assert stage.projector.calls == [[99], [5]]


def test_owners_take_turns_and_sizes_go_together(stage: Stage) -> None:
    stage.hold_up()
    for index in range(1, 6):
        stage.order(index)
    stage.order(6, owner=2, n_tokens=7)
    last = stage.order(7, owner=3)
    stage.go_on()
    stage.until(lambda: not stage.encoder._jobs)
    assert last.is_done
    assert stage.projector.calls[0] == [99]
    assert stage.projector.calls[1] == [1, 7, 2]  # 30 tokens, in turns
    assert sorted(map(sorted, stage.projector.calls[2:])) == [[3, 4, 5], [6]]


def test_a_projector_that_takes_one_gets_one(stage: Stage) -> None:
    stage.projector.at_once = 1
    stage.hold_up()
    orders = [stage.order(index) for index in range(1, 7)]
    stage.go_on()
    stage.until(lambda: all(order.is_done for order in orders))
    assert stage.projector.calls == [[99], [1], [2], [3], [4], [5], [6]]
    assert stage.projector.offered == [1, 3, 3, 3, 1, 1, 1]  # after three attempts


@pytest.mark.parametrize(("index", "message"), [(13, "no luck"), (14, "RuntimeError: a bug")])
def test_a_failure_is_of_its_orders_only(stage: Stage, index: int, message: str) -> None:
    stage.hold_up()
    bad, good = stage.order(index), stage.order(1, owner=2)
    stage.go_on()
    stage.until(lambda: bad.is_done and good.is_done)
    assert str(bad.error) == message
    assert good.rows is not None
    stage.encoder.release(bad)
    again = stage.order(index)  # it is tried again
    stage.until(lambda: again.is_done)
    assert str(again.error) == message


def test_a_dropped_medium_is_not_encoded(stage: Stage) -> None:
    stage.hold_up()
    dropped, kept = stage.order(1), stage.order(2)
    stage.encoder.release(dropped)
    stage.go_on()
    stage.until(lambda: kept.is_done)
    assert stage.projector.calls == [[99], [2]]
    wanted = stage.order(1)
    stage.until(lambda: wanted.is_done)


def test_the_oldest_unused_media_are_forgotten(stage: Stage) -> None:
    stage.encoder.close()
    each = 10 * N_EMBD * 4
    encoder = stage.new(2 * each)
    held = stage.order(1)
    stage.until(lambda: held.is_done)
    for index in (2, 3, 4):
        order = stage.order(index)
        stage.until(lambda order=order: order.is_done)  # type: ignore[misc]
        encoder.release(order)
    assert encoder.ids() == [-1, -4]
    encoder.release(held)
    more = [stage.order(index) for index in (5, 6, 7)]  # held all, whatever the limit
    stage.until(lambda: all(order.rows is not None for order in more))
    assert {-5, -6, -7} <= set(encoder.ids())
    for order in more:
        encoder.release(order)
    assert encoder.ids() == [-6, -7]


def test_it_rests_when_there_is_nothing_to_do(stage: Stage) -> None:
    order = stage.order(1)
    stage.until(lambda: order.is_done)
    projector = stage.projector
    with projector.rested:
        assert projector.rested.wait_for(
            lambda: projector.n_rests > projector.rests_before, SECONDS
        )


def test_it_ends_with_orders_that_wait(stage: Stage) -> None:
    stage.hold_up()
    waiting = stage.order(1, n_tokens=3)
    closing = threading.Thread(target=stage.encoder.close)
    closing.start()
    while not stage.encoder._closing:
        pass
    stage.go_on()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert not waiting.is_done
