"""The size of the context and the number of layers on devices for which memory suffices: plain
data in, plain data out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specllama.engine.wire.devices import CPU, Bytes, DeviceUse

AUTO = -1
"""In place of a number of layers: as many as llama.cpp puts on devices by itself."""

Measure = Callable[[int, int], Sequence[DeviceUse]]
"""Gives what every device would hold, for a number of tokens and one of layers."""


@dataclass(frozen=True)
class FitBudget:
    """The free memory of a device, or of the machine, and what of it is to stay free."""

    free: Bytes
    margin: Bytes


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options as they are, and what may be chosen in their place."""

    n_ctx: int
    n_layers: int = AUTO
    least_ctx: int
    """The smallest context to choose; that of `n_ctx` if it was given and stays as it is."""
    most_layers: int = 0
    """The number of layers that there are; 0 if their number was given and stays as it is."""
    step: int
    """Contexts are multiples of this."""


@dataclass(frozen=True)
class Choice:
    """What to load the model with."""

    n_ctx: int
    n_layers: int
    uses: Sequence[DeviceUse]
    """What every device holds then."""
    fits: bool
    """True if everything the budgets say stays free."""


def choose(asked: Asked, measure: Measure, budgets: Mapping[str, FitBudget]) -> Choice:
    """The choice that changes least: a smaller context first, then fewer layers on devices. What
    was given stays, even where it doesn't fit."""

    def tried(n_ctx: int, n_layers: int) -> Choice:
        uses = measure(n_ctx, n_layers)
        return Choice(n_ctx, n_layers, uses, fit(uses, budgets))

    found = tried(asked.n_ctx, asked.n_layers)
    if not found.fits and asked.least_ctx < asked.n_ctx:
        least = tried(asked.least_ctx, asked.n_layers)
        if _total(least.uses) < _total(found.uses):  # not where the state is of a fixed size
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
    """The choice of the greatest of `numbers` that fits; `first`, which is that of the smallest,
    if none of the others does."""
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
    """True if there is room on all devices; that of the CPU counts where the model is on none."""
    held = [use for use in uses if use.name in budgets]
    on_devices = [use for use in held if use.name != CPU]
    return all(
        use.model + use.kv_cache + use.compute + budgets[use.name].margin <= budgets[use.name].free
        for use in on_devices or held
    )
