"""What the devices of an engine process hold."""

import msgspec

Bytes = int
CPU = "CPU"
"""The name of the device that is no other one: its memory is the host's."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One model's part of a device's memory, the CPU's included, as llama.cpp told it while it
    loaded the model. `n_layers` counts the output's as one."""

    name: str
    description: str = ""
    n_layers: int = 0
    model: Bytes = 0
    kv_cache: Bytes = 0  # recurrent states as well
    compute: Bytes = 0  # for what a step computes, its outputs included


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of a device that layers can be offloaded to, whoever uses it."""

    name: str
    free: Bytes
    total: Bytes
