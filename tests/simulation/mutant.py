"""Mutants: changes of the product that histories have to find. Each changes one public call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.history import History
from tests.simulation.library import replaced
from tests.simulation.server import Machine

FINDS = 150
"""The number of seeds within which each mutant has to be found."""


class Acts:
    """Counts how often a mutant behaved differently from the product."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> None:
        self.n += 1


@dataclass(frozen=True)
class Mutant:
    """`change` replaces the function `call` of `owner`, a class or a module. It gets the real
    function, the `Acts` to count in, and the arguments."""

    name: str
    owner: Any
    call: str
    change: Callable[..., Any]

    @contextmanager
    def installed(self, acts: Acts) -> Iterator[None]:
        real = getattr(self.owner, self.call)

        def method(this: Any, *args: Any, **named: Any) -> Any:
            return self.change(partial(real, this), acts, *args, **named)

        def function(*args: Any, **named: Any) -> Any:
            return self.change(real, acts, *args, **named)

        changed = method if isinstance(self.owner, type) else function
        with replaced(self.owner, {self.call: changed}):
            yield

    def is_found(self, seed: int) -> bool:
        """True if the history of `seed` fails with this mutant, after the mutant changed
        something."""
        acts = Acts()
        usual = Machine.installed

        @contextmanager
        def installed(machine: Machine) -> Iterator[None]:
            with usual(machine), self.installed(acts):  # requests alone run without the mutant
                yield

        with replaced(Machine, {"installed": installed}):
            try:
                History(seed).run()
            except Exception:  # any failure of the history
                return acts.n > 0
        return False

    def first_seed(self, seeds: range) -> int | None:
        """Returns the first of `seeds` that finds this mutant; None if no seed does."""
        return next((seed for seed in seeds if self.is_found(seed)), None)


def skips(answer: Any = None) -> Callable[..., Any]:
    """Returns a change: the call does nothing, and returns `answer`."""

    def change(real: Callable[..., Any], acts: Acts, *args: Any, **named: Any) -> Any:
        acts()
        return answer

    return change


def adds(place: int, amount: int) -> Callable[..., Any]:
    """Returns a change: `amount` is added to the argument at `place`, a number."""

    def change(real: Callable[..., Any], acts: Acts, *args: Any, **named: Any) -> Any:
        acts()
        changed = [*args]
        changed[place] += amount
        return real(*changed, **named)

    return change


def gives(place: int, value: Any) -> Callable[..., Any]:
    """Returns a change: the argument at `place` is `value`."""

    def change(real: Callable[..., Any], acts: Acts, *args: Any, **named: Any) -> Any:
        acts()
        return real(*args[:place], value, *args[place + 1 :], **named)

    return change
