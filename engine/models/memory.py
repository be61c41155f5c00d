"""The memory that models take on each device, and its limits (`--models-memory`).

Plain data, without a clock: `engine.models.residency` decides with it. The devices are the host
(`HOST`) and GPUs by llama.cpp's names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from specllama.engine.options import EngineOptions, replaced
from specllama.engine.options.text_values import EVERY_GPU, HOST, MemorySize
from specllama.engine.wire.devices import CPU, Bytes, DeviceMemory, DeviceUse, mib
from specllama.engine.wire.replies import Measured, ModelInfo

PLACES: Final = "places"
"""The name of the number of models (`--models-max`), where it counts like the memory of a
device."""
HALF: Final = 0.46
"""The part of a 16-bit KV cache that is saved by q8_0, which takes 8.5 bits for each number."""


class Need(msgspec.Struct, frozen=True):
    """The memory of one model: the bytes on each device, and `mapped` bytes of the host's memory
    with weights that are mapped from `file`. Models with the same file share these."""

    own: dict[str, Bytes] = {}
    mapped: Bytes = 0
    file: str = ""

    def on_devices(self) -> dict[str, Bytes]:
        """Returns the bytes on each device, if no other model shares its file."""
        return total([self])


def total(needs: Iterable[Need]) -> dict[str, Bytes]:
    """Returns the bytes that models take together, by device. A mapped file counts once."""
    found: dict[str, Bytes] = {}
    mapped: dict[str, Bytes] = {}
    for need in needs:
        for device, n_bytes in need.own.items():
            found[device] = found.get(device, 0) + n_bytes
        if need.mapped:
            mapped[need.file] = max(mapped.get(need.file, 0), need.mapped)
    if mapped:
        found[HOST] = found.get(HOST, 0) + sum(mapped.values())
    return found


def need_of(measured: Measured, file: str) -> Need:
    """Returns what a model will take, by a dry run. `file` is the path of its weights."""
    own = _by_device(measured.uses)
    own[HOST] = max(own.get(HOST, 0) - measured.n_mapped, 0) + measured.n_base
    return Need(own, measured.n_mapped, file)


def need_of_loaded(planned: Need, info: ModelInfo, n_private: Bytes) -> Need:
    """Returns what a loaded model takes: on GPUs what llama.cpp has allocated; on the host what was
    planned, or the `n_private` bytes of its process if these are more."""
    own = _by_device(info.devices)
    own[HOST] = max(planned.own.get(HOST, 0) if planned.own else own.get(HOST, 0), n_private)
    return Need(own, planned.mapped, planned.file)


def _by_device(uses: Iterable[DeviceUse]) -> dict[str, Bytes]:
    found: dict[str, Bytes] = {}
    for use in uses:
        name = HOST if use.name == CPU else use.name
        found[name] = found.get(name, 0) + use.model + use.kv_cache + use.compute + use.draft
    return found


def with_measured(options: EngineOptions, measured: Measured | None) -> EngineOptions:
    """Returns the options for loading a model, with the values of its measurement."""
    if measured is None:
        return options
    options = replaced(options, ctx_size=measured.ctx_size)
    if measured.n_gpu_layers < 0:
        return options
    return replaced(options, n_gpu_layers=measured.n_gpu_layers)


# ---- limits -------------------------------------------------------------------------------


def limits(
    sizes: Sequence[MemorySize], margin: Bytes, memory: Sequence[DeviceMemory]
) -> dict[str, Bytes]:
    """Returns the bytes that all models together may take on each device.

    `memory` is that of the machine when no model is loaded. A device without a size in `sizes` has
    no limit but the `margin`, the bytes that stay free of its memory; without a margin, it is
    missing in the result, as is a device whose memory is unknown.
    """
    found: dict[str, Bytes] = {}
    for device in memory:
        size = _size(sizes, device.name)
        most = [] if size is None else [size.of(device.total)]
        if margin:
            most.append(max(device.free - margin, 0))
        if most and (device.total or (size is not None and not size.is_percentage)):
            found[device.name] = min(most) if device.total else most[0]
    return found


def unknown_devices(sizes: Sequence[MemorySize], memory: Sequence[DeviceMemory]) -> list[str]:
    """Returns the devices in `sizes` that this machine doesn't have, or whose total memory isn't
    known although a percentage needs it."""
    totals = {device.name: device.total for device in memory}
    return [
        size.device
        for size in sizes
        if size.device != EVERY_GPU
        and (size.device not in totals or (size.is_percentage and not totals[size.device]))
    ]


def _size(sizes: Sequence[MemorySize], device: str) -> MemorySize | None:
    """Returns the size for a device. Its own name takes precedence over `EVERY_GPU`; of several
    sizes, the last one counts."""
    found = [size for size in sizes if size.device == device]
    if not found and device != HOST:
        found = [size for size in sizes if size.device == EVERY_GPU]
    return found[-1] if found else None


# ---- messages -----------------------------------------------------------------------------


def refusal(name: str, measured: Measured | None, need: Need, room: Mapping[str, Bytes]) -> str:
    """Returns why a model can never be loaded, and what would help. `room` has the devices on which
    it doesn't fit, with the bytes that are there without the pinned models."""
    if not room.keys() - {PLACES}:
        return (
            f"the model {name!r} can't be loaded: pinned models have all places (--models-max); "
            "a higher --models-max would help"
        )
    needed = need.on_devices()
    parts = [
        f"{mib(needed.get(device, 0))} {_where(device)}, where models may take {mib(n_bytes)}"
        for device, n_bytes in room.items()
        if device != PLACES
    ]
    uses = Measured([]) if measured is None else measured
    remedies = [each for device in room for each in _remedies(device, uses, needed, room)]
    help = [*dict.fromkeys(remedies), "a higher --models-memory"]
    return (
        f"the model {name!r} can't be loaded: it needs {' and '.join(parts)}; "
        f"{' or '.join(help)} would help"
    )


def _where(device: str) -> str:
    return "of the host's memory" if device == HOST else f"on {device}"


def _remedies(
    device: str, measured: Measured, needed: Mapping[str, Bytes], room: Mapping[str, Bytes]
) -> list[str]:
    """Returns the options that would make the model fit into the room on one device."""
    use = next((u for u in measured.uses if u.name == (CPU if device == HOST else device)), None)
    if use is None:
        return []
    missing = needed.get(device, 0) - room[device]
    found = []
    if missing < use.kv_cache + use.compute:
        found.append(f"a smaller --ctx-size (its KV cache takes {mib(use.kv_cache)})")
    if measured.is_cache_16_bit and missing < HALF * use.kv_cache:
        found.append("--cache-type-k q8_0 --cache-type-v q8_0")
    gpus = [each for each in measured.uses if each.name != CPU]
    if device == HOST and gpus:
        found.append("a higher --n-gpu-layers")
    elif device != HOST:
        found.append("a lower --n-gpu-layers")
    return found
