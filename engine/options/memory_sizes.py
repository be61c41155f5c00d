"""The values of `--models-memory`: sizes of memory by device."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from specllama.engine.options.values import OptionError, integer, quote, show_comma_separated

HOST: Final = "host"
"""The name of the host's memory among the devices."""
EVERY_GPU: Final = "gpu"
"""Stands for each GPU that has no size of its own."""
MAX_SIZE: Final = 1 << 30  # MiB
_NAME: Final = re.compile(r"[A-Za-z][\w.:-]{0,63}")


class MemorySize(NamedTuple):
    """The memory for models on a device: a number of MiB, or a percentage of its memory."""

    device: str
    number: int
    is_percentage: bool = False

    def of(self, n_total: int) -> int:
        """Returns the bytes on a device with `n_total` bytes."""
        return n_total * self.number // 100 if self.is_percentage else self.number << 20


def memory_sizes(text: str) -> tuple[MemorySize, ...]:
    """Returns the sizes in `text`: elements DEVICE=SIZE, separated by commas. A SIZE without a
    device is that of the host. It is a number of MiB, or a percentage such as 80%."""
    found = tuple(_size(element.strip()) for element in text.split(","))
    devices = [size.device for size in found]
    for device in devices:
        if devices.count(device) > 1:
            raise OptionError(f"{quote(device)} has several sizes")
    return found


def show_memory_sizes(sizes: Sequence[MemorySize]) -> str:
    return show_comma_separated(
        [f"{each.device}={each.number}{'%' * each.is_percentage}" for each in sizes]
    )


def _size(text: str) -> MemorySize:
    device, equals, size = text.rpartition("=")
    device = device.strip() if equals else HOST
    if not _NAME.fullmatch(device):
        raise OptionError(f"{quote(device)} is not the name of a device")
    size = size.strip()
    if size.endswith("%"):
        return MemorySize(device, integer(size[:-1], 1, 100), is_percentage=True)
    return MemorySize(device, integer(size, 1, MAX_SIZE))
