"""Changes of the product that histories have to find. Each makes one public call do something
else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.history import History
from tests.simulation.library import replaced
from tests.simulation.server import Machine

FINDS = 150
"""Seeds within which each mutant is found."""


class Acts:
    """Counts how often a mutant did something else than the product."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> None:
        self.n += 1


@dataclass(frozen=True)
class Mutant:
    """`change` is called in the place of `name` of `owner`, a class or a module, with the real
    call, the `Acts` that it adds to, and the arguments."""

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
        """True if the history of `seed` fails with it, after it did something."""
        acts = Acts()
        usual = Machine.installed

        @contextmanager
        def installed(machine: Machine) -> Iterator[None]:
            with usual(machine), self.installed(acts):  # not for requests alone
                yield

        with replaced(Machine, {"installed": installed}):
            try:
                History(seed).run()
            except Exception:  # whatever a history ends with
                return acts.n > 0
        return False

    def first_seed(self, seeds: range) -> int | None:
        """The first of `seeds` that finds it."""
        return next((seed for seed in seeds if self.is_found(seed)), None)


def skips(answer: Any = None) -> Callable[..., Any]:
    """The call does nothing, and returns `answer`."""

    def change(real: Callable[..., Any], acts: Acts, *args: Any, **named: Any) -> Any:
        acts()
        return answer

    return change


def adds(place: int, amount: int) -> Callable[..., Any]:
    """The argument at `place`, a number, is larger by `amount`."""

    def change(real: Callable[..., Any], acts: Acts, *args: Any, **named: Any) -> Any:
        acts()
        changed = [*args]
        changed[place] += amount
        return real(*changed, **named)

    return change


def gives(place: int, value: Any) -> Callable[..., Any]:
    """The argument at `place` is `value`."""

    def change(real: Callable[..., Any], acts: Acts, *args: Any, **named: Any) -> Any:
        acts()
        return real(*args[:place], value, *args[place + 1 :], **named)

    return change
