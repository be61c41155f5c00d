"""The size of a model's weights."""

import pytest

from specllama.engine.wire.devices import CPU, DeviceUse
from tests.support.factories import model_info


@pytest.mark.parametrize(
    ("devices", "on_devices", "in_memory"),
    [
        ([], 0, 4000),
        ([DeviceUse(name=CPU, model=4000)], 0, 4000),
        ([DeviceUse(name=CPU, model=1000), DeviceUse(name="GPU0", model=3200)], 3200, 4200),
        ([DeviceUse(name="GPU0", model=2100), DeviceUse(name="GPU1", model=2100)], 4200, 4200),
    ],
    ids=["unknown", "CPU", "both", "aligned"],
)
def test_devices_never_hold_more_than_all_weights(
    devices: list[DeviceUse], on_devices: int, in_memory: int
) -> None:
    info = model_info(devices=devices)
    assert info.size_on_devices == on_devices
    assert info.size_in_memory == in_memory
