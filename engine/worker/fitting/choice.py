"""Chooses the size of the context, and the number of layers on devices, so that they fit into
memory. Pure functions over plain data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specllama.engine.wire.devices import CPU, Bytes, DeviceUse

AUTO = -1
"""Stands for a number of layers: llama.cpp's default."""

Measure = Callable[[int, int], Sequence[DeviceUse]]
"""Returns the memory of every device, for a number of tokens and a number of layers."""


@dataclass(frozen=True)
class FitBudget:
    """The free memory of a device or of the machine, and the part that must stay free."""

    free: Bytes
    margin: Bytes


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The requested values, and the allowed alternatives."""

    n_ctx: int
    n_layers: int = AUTO
    least_ctx: int
    """The smallest allowed context; `n_ctx` if the user has set it."""
    most_layers: int = 0
    """The number of layers of the model; 0 if the user has set the number."""
    step: int
    """Contexts are multiples of this."""


@dataclass(frozen=True)
class Choice:
    """The values for loading the model."""

    n_ctx: int
    n_layers: int
    uses: Sequence[DeviceUse]
    """The memory of every device with these values."""
    fits: bool
    """True if the margins of all budgets stay free."""


def choose(asked: Asked, measure: Measure, budgets: Mapping[str, FitBudget]) -> Choice:
    """The choice with the smallest change: first a smaller context, then fewer layers on devices.
    Values set by the user stay, even if they don't fit."""

    def tried(n_ctx: int, n_layers: int) -> Choice:
        uses = measure(n_ctx, n_layers)
        return Choice(n_ctx, n_layers, uses, fit(uses, budgets))

    found = tried(asked.n_ctx, asked.n_layers)
    if not found.fits and asked.least_ctx < asked.n_ctx:
        least = tried(asked.least_ctx, asked.n_layers)
        if _total(least.uses) < _total(found.uses):  # no effect if the state has a fixed size
            found = least
        if least.fits:
            return _greatest(
                least,
                range(asked.least_ctx, asked.n_ctx, asked.step),
                lambda n_ctx: tried(n_ctx, asked.n_layers),
            )
    if not found.fits and asked.most_layers:
        found = tried(n_ctx := found.n_ctx, 0)
        found = _greatest(found, range(asked.most_layers), lambda n: tried(n_ctx, n))
    return found


def largest_context(most: int, step: int, works: Callable[[int], bool]) -> int:
    """The largest multiple of `step` below `most` for which `works` is true; 0 if there is none."""
    low, high = 0, -(-most // step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle * step) else (low, middle)
    return low * step


def _greatest(first: Choice, numbers: range, tried: Callable[[int], Choice]) -> Choice:
    """The choice for the greatest of `numbers` that fits; `first`, the choice for the smallest one,
    if no other fits."""
    low, high = 0, len(numbers)
    while high - low > 1:
        middle = (low + high) // 2
        if (choice := tried(numbers[middle])).fits:
            low, first = middle, choice
        else:
            high = middle
    return first


def _total(uses: Sequence[DeviceUse]) -> Bytes:
    return sum(use.model + use.kv_cache + use.compute for use in uses)


def fit(uses: Sequence[DeviceUse], budgets: Mapping[str, FitBudget]) -> bool:
    """True if all devices have room; the CPU only counts if the model is on no other device."""
    held = [use for use in uses if use.name in budgets]
    on_devices = [use for use in held if use.name != CPU]
    return all(
        use.model + use.kv_cache + use.compute + budgets[use.name].margin <= budgets[use.name].free
        for use in on_devices or held
    )
