"""The benchmark with a simulated device measures all its scenarios."""

import math

import pytest

from benchmarks.overlap import SCENARIOS, Device, measure
from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import Model, initialize
from tools.models.build import ensure


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("n_slots", [1, 3])
def test_each_scenario_is_measured(scenario: str, n_slots: int) -> None:
    initialize()
    model = Model(str(ensure("random")), EngineOptions())
    try:
        found = measure(model, scenario, n_slots=n_slots, n_steps=5, seconds=0.0)
    finally:
        model.close()
    assert all(value >= 0 for value in vars(found).values())
    assert found.cpu > 0


def test_the_device_is_idle_between_two_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr("benchmarks.overlap.time.perf_counter", lambda: now)
    device = Device(1, 8, [3], seconds=2.0)
    assert device.rows[:, 3].max() == -math.inf
    for later in (0.0, 1.0, 4.0):  # at the beginning; before the end; a second after the end
        now += later
        device.begin()
    assert device.idle[1:] == [0.0, 1.0]
    assert device.address(None, 0) == device.rows[3].ctypes.data
    assert device.address(None, 1) == device.rows[4].ctypes.data
