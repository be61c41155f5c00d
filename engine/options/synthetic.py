"""Rates of acceptance that are made up, for measuring: `--spec-synth-len`, `--spec-synth-rates`."""

from collections.abc import Sequence
from itertools import pairwise

from specllama.engine.options.values import OptionError, real

HALVINGS = 50
"""Of an interval, until nothing is left of it that a number could tell."""


def read_rates(text: str) -> tuple[float, ...]:
    """The chance that so many tokens of a proposal are accepted: one, two, and so on."""
    rates = tuple(real(rate.strip(), 0, 1) for rate in text.split(","))
    if any(after > before for before, after in pairwise(rates)):
        raise OptionError(
            "a rate is higher than the one before: a token is accepted only with those before it"
        )
    return rates


def show_rates(rates: Sequence[float]) -> str:
    return ",".join(map(str, rates))


def rates_of(length: float, rates: tuple[float, ...], n_max: int) -> tuple[float, ...]:
    """The rates of proposals of up to `n_max` tokens: those given, or those with which a step
    gives `length` tokens on average, its own included. None if both are missing. Raises
    `OptionError` for what doesn't go with `n_max`."""
    if not length and not rates:
        return ()
    name = "--spec-synth-rates" if rates else "--spec-synth-len"
    if not n_max:
        raise OptionError(
            f"{name} needs proposals whose acceptance it makes up: --spec-type or --model-draft"
        )
    if rates:
        if len(rates) != n_max:
            raise OptionError(
                f"{name} has {len(rates)} rates, but up to {n_max} tokens are proposed at once: "
                "it has to have one for each"
            )
        return rates
    if length > n_max + 1:
        raise OptionError(
            f"{name} {length:g} is out of range: with up to {n_max} proposed tokens, "
            f"a step gives {n_max + 1} at the most"
        )
    chance = _chance(length - 1, n_max)
    return tuple(chance**n for n in range(1, n_max + 1))


def _chance(length: float, n: int) -> float:
    """Of each token, if those before it are accepted, for `length` accepted ones of `n`."""
    if length == n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        chance = (low + high) / 2
        if sum(chance**k for k in range(1, n + 1)) < length:
            low = chance
        else:
            high = chance
    return low
