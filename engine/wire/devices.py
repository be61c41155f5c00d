"""The memory of an engine process on each device."""

from collections.abc import Sequence

import msgspec

Bytes = int
CPU = "CPU"
"""The name of the CPU as a device, whose memory is the host's."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one model on a device, or on the CPU, as logged by llama.cpp while it loaded
    the model. `n_layers` includes the output layer. `draft` is the total of the draft model."""

    name: str
    description: str = ""
    n_layers: int = 0
    model: Bytes = 0
    kv_cache: Bytes = 0  # including recurrent states
    compute: Bytes = 0  # for computing a step, including its outputs
    draft: Bytes = 0


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of a device for offloading, together for all processes."""

    name: str
    free: Bytes
    total: Bytes


def device_lines(uses: Sequence[DeviceUse]) -> list[str]:
    """A log line about each device; empty if everything is in the CPU's memory."""
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
    """A size in MiB, with one decimal if it is small."""
    return f"{n_bytes / (1 << 20):,.{0 if n_bytes >= 10 << 20 else 1}f} MiB"
