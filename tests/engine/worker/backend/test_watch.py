"""The time that a computation may take before it counts as endless."""

import pytest

from specllama.engine import system
from specllama.engine.wire.startup import disk_reads
from specllama.engine.worker.backend.watch import (
    FACTOR,
    FIRST,
    FLOOR,
    MARGIN,
    UNKNOWN,
    ThreadWatch,
)

DECODE = "a decode"


class Stage:
    """A watch, the clock, and the number of reads from disks."""

    def __init__(self, *, loads: bool = False) -> None:
        self.now = 0.0
        self.n_reads = 0
        self.watch = ThreadWatch(lambda: self.n_reads, loads=loads)

    def does(
        self, seconds: float, n_tokens: int = 0, what: str = DECODE, *, by: object = 1
    ) -> None:
        """Something from its beginning to its end."""
        self.watch.begin(what, n_tokens, by)
        self.now += seconds
        for _ in range(int(seconds)):
            self.watch.look(1.0)
        self.watch.rest()

    def limit(self, n_tokens: int = 0, what: str = DECODE, *, by: object = 1) -> int:
        """The seconds after which something that never ends is noticed."""
        self.watch.begin(what, n_tokens, by)
        looks = 1
        while self.watch.look(1.0) is None:
            looks += 1
        return looks - 1


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = Stage()
    monkeypatch.setattr(system, "now", lambda: found.now)
    return found


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = Stage(loads=True)
    monkeypatch.setattr(system, "now", lambda: found.now)
    return found


def test_the_message_names_the_slow_work(stage: Stage) -> None:
    stage.does(0.1, 300)
    stage.watch.begin(DECODE, 512, 1)
    *quiet, report = [stage.watch.look(1.0) for _ in range(int(FIRST) + 1)]
    assert quiet == [None] * int(FIRST)
    assert report == "a decode of 512 tokens has not ended for 301 s (the limit is 300 s)"
    stage.watch.begin(DECODE, 1, 1)
    stage.watch.rest()
    stage.watch.begin("a step")
    report = [stage.watch.look(1.0) for _ in range(int(FIRST) + 1)][-1]
    assert report is not None
    assert report.startswith("a step has not ended")


def test_known_work_has_a_shorter_limit(stage: Stage) -> None:
    stage.does(0.1, 300)
    assert stage.limit(257) == FLOOR, "of about the same size"
    stage.watch.rest()
    assert stage.limit(513) == FIRST
    stage.watch.rest()
    assert stage.limit(257, "a decode of media") == FIRST
    stage.watch.rest()
    assert stage.limit(257, by=2) == FIRST


def test_a_slow_machine_has_longer_limits(stage: Stage) -> None:
    stage.does(40.0, 300)
    stage.does(20.0, 300)
    stage.does(30.0, 300)
    assert stage.limit(300) == FACTOR * 30.0


def test_the_first_time_is_forgotten_with_the_second(stage: Stage) -> None:
    """Kernels were compiled then."""
    stage.does(200.0, 300)
    stage.does(0.1, 300)
    assert stage.limit(300) == FLOOR


def test_failed_work_is_not_known(stage: Stage) -> None:
    """There was no room for it, which was detected at once. It is still watched."""
    stage.watch.begin(DECODE, 300, 1)
    stage.watch.failed()
    stage.watch.rest()
    assert stage.limit(300) == FIRST
    stage.watch.failed()
    assert stage.watch.look(1.0) is not None
    stage.watch.rest()
    stage.watch.failed()


def test_many_tokens_may_take_longer_than_the_first_limit(stage: Stage) -> None:
    assert stage.limit(2048) == MARGIN * UNKNOWN * 2048
    stage.watch.rest()
    stage.does(1.0, 1, by=2)
    assert stage.limit(2048, by=2) == MARGIN * 2048


def test_a_fast_machine_has_the_first_limit_for_many_tokens(stage: Stage) -> None:
    stage.does(0.01, 1)
    assert stage.limit(2048) == FIRST


def test_finished_work_is_never_reported(stage: Stage) -> None:
    for _ in range(2 * int(FIRST)):
        stage.watch.begin("a step")
        assert stage.watch.look(1.0) is None


def test_waiting_work_is_never_reported(stage: Stage) -> None:
    assert stage.watch.look(1.0) is None
    stage.watch.begin("a step")
    stage.watch.rest()
    assert {stage.watch.look(1.0) for _ in range(2 * int(FIRST))} == {None}


def test_seconds_in_which_a_disk_was_read_do_not_count(stage: Stage) -> None:
    stage.watch.begin("a step")
    for _ in range(2 * int(FIRST)):
        stage.n_reads += 1
        assert stage.watch.look(1.0) is None
    looks = 0
    while stage.watch.look(1.0) is None:
        looks += 1
    assert looks == FIRST


def test_a_process_that_was_stopped_has_not_been_slow(stage: Stage) -> None:
    """A night is one look, and says nothing of how long it may take later."""
    stage.does(0.1)
    for _ in range(2):
        stage.watch.begin(DECODE, 0, 1)
        assert stage.watch.look(1.0) is None
        stage.now += 30_000.0
        assert stage.watch.look(1.0) is None
        stage.watch.rest()
    assert stage.limit() == FACTOR * 3.0


def test_while_a_model_is_loaded_all_have_the_first_limit(loading: Stage) -> None:
    loading.does(0.1, what="a part")
    assert loading.limit(what="a part") == FIRST
    for _ in range(2 * int(FIRST)):
        loading.watch.begin("a part")  # its progress
        assert loading.watch.look(1.0) is None
    loading.watch.loaded()
    assert loading.limit(what="a part") == FLOOR


def test_reads_are_counted_upwards() -> None:
    before = disk_reads()
    assert 0 <= before <= disk_reads()
