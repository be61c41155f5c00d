"""What the devices of an engine process hold."""

from collections.abc import Sequence

import msgspec

Bytes = int
CPU = "CPU"
"""The name of the device that is no other one: its memory is the host's."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One model's part of a device's memory, the CPU's included, as llama.cpp told it while it
    loaded the model. `n_layers` counts the output's as one. `draft` is what the draft model has in
    all."""

    name: str
    description: str = ""
    n_layers: int = 0
    model: Bytes = 0
    kv_cache: Bytes = 0  # recurrent states as well
    compute: Bytes = 0  # for what a step computes, its outputs included
    draft: Bytes = 0


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of a device that layers can be offloaded to, whoever uses it."""

    name: str
    free: Bytes
    total: Bytes


def told(uses: Sequence[DeviceUse]) -> list[str]:
    """A line for the log about each device; none where all is in the CPU's memory."""
    return [_line(use) for use in uses] if any(use.name != CPU for use in uses) else []


def _line(use: DeviceUse) -> str:
    plural = "s" if use.n_layers > 1 else ""
    layers = f"{use.n_layers} layer{plural}, " if use.n_layers else ""
    model, cache, compute = (mib(n) for n in (use.model, use.kv_cache, use.compute))
    draft = f", draft model {mib(use.draft)}" if use.draft else ""
    return (
        f"{use.name}: {layers}weights {model}, KV cache {cache}, compute buffers {compute}{draft}"
    )


def mib(n_bytes: int) -> str:
    """A size in MiB, with a digit behind the point if it is small."""
    return f"{n_bytes / (1 << 20):,.{0 if n_bytes >= 10 << 20 else 1}f} MiB"
