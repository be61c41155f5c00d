"""The measurements of the sweep, their duration, and the values that it keeps."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specllama.engine.worker.scheduling.sweep import (
    REMEMBERED,
    SECONDS,
    Sweep,
    measure,
    remember,
    remembered,
)


class Device:
    """A device on which `n` tokens take `seconds(n)`."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.evaluated: list[tuple[list[int], bool]] = []
        self.spent = 0.0

    def __call__(self, lengths: Sequence[int], every: bool) -> float:
        self.evaluated.append(([*lengths], every))
        seconds = self.seconds(sum(lengths))
        self.spent += seconds
        return seconds


def swept(device: Device, n_most: int = 512, n_sequences: int = 4, n_rows: int = 512) -> Sweep:
    return measure(device, n_most=n_most, n_sequences=n_sequences, n_rows=n_rows)


def test_prompts_are_measured_beside_others_and_alone() -> None:
    device = Device(lambda n: 0.001 + 1e-5 * n)
    found = swept(device)
    assert found.rows[1] == pytest.approx(0.00101)
    assert found.rows[8] == pytest.approx(0.00108)
    assert found.prompts[32] == pytest.approx(32e-5)
    assert found.prompts[384] == pytest.approx(384e-5)
    assert found.alone == pytest.approx(0.001)
    assert ([1, 1, 384], False) in device.evaluated
    assert ([8], True) in device.evaluated


@pytest.mark.parametrize("each", [1e-6, 1e-4, 2e-3, 2e-2, 0.5, 5.0])
def test_it_ends_in_time_and_measures_important_sizes_first(each: float) -> None:
    device = Device(lambda n: each * (1 + n / 8))
    found = swept(device)
    assert device.spent <= 1.5 * SECONDS or len(device.evaluated) == 1
    if each <= 2e-2:
        assert 72 in found.prompts
    if each <= 1e-4:
        assert max(found.prompts) == 384


def test_bounds_are_kept() -> None:
    device = Device(lambda n: 0.001)
    found = swept(device, n_most=100, n_sequences=1, n_rows=4)
    assert max(found.prompts) == 96
    assert max(found.rows) == 4
    assert found.alone == 0, "no sequence generates beside them"
    assert all(len(lengths) == 1 for lengths, _ in device.evaluated)
    assert all(sum(lengths) <= 100 for lengths, _ in device.evaluated)
    assert swept(Device(lambda n: 0.001), n_most=1, n_sequences=1, n_rows=1).prompts == {}


def test_measurements_that_disagree_are_left_out() -> None:
    times = iter(10.0**i * 1e-6 for i in range(99))
    found = swept(Device(lambda n: next(times) if n == 130 else 0.001))
    assert 128 not in found.prompts
    assert 72 in found.prompts


def test_a_sweep_is_remembered(tmp_path: Path) -> None:
    place = tmp_path / "steps" / "some.json"
    assert remembered(place) is None
    sweep = Sweep({1: 0.5}, {32: 1.5}, 0.25)
    remember(place, sweep)
    assert remembered(place) == sweep
    assert [*place.parent.iterdir()] == [place]
    place.write_bytes(b"{")
    assert remembered(place) is None
    place.write_bytes(b'{"rows": {"1": "no"}}')
    assert remembered(place) is None


def test_a_place_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remember(tmp_path / "file" / "some.json", Sweep())


def test_old_ones_are_removed(tmp_path: Path) -> None:
    for i in range(REMEMBERED + 5):
        remember(tmp_path / f"{i}.json", Sweep())
    assert len([*tmp_path.iterdir()]) == REMEMBERED
