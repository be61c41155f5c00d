"""What a mutant is, and how it gets into a server.

Each breaks one thing by giving a module or a class another function. That has the signature of the
one whose place it takes, or the server ends at once. All mutants of a server are installed
together, and each lies only while it is switched on: they share one process. When one lies for the
first time, stderr says so (`exercised`): a mutant that nobody has met can't be caught.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol

from contract_tests.kit.server import Server

Check = Callable[[Server], None]
Kind = Literal["one model", "router", "seeing", "embedder", "reranker"]
"""The server that a mutant needs."""


class Replace(Protocol):
    """Gives a module or a class another function of that name, while the mutant is switched on."""

    def __call__(self, owner: object, name: str, lie: Callable[..., Any]) -> None: ...


Break = Callable[[Replace], None]


class Mutant(NamedTuple):
    """One thing that is broken: the check of the kit that has to fail, and what its failure has to
    say (a pattern). Without a check, `failure` is the reason why none can fail.

    `lies` is whether all answers are as described, so that only what they say is wrong.
    """

    name: str
    api: str
    says: str
    kind: Kind
    install: Break
    check: Check | None
    failure: str
    lies: bool


class Mutants:
    """The mutants of one API, in the order of their definition."""

    def __init__(self, api: str, kind: Kind = "one model") -> None:
        self.api = api
        self.kind = kind
        self.all: list[Mutant] = []

    def caught_by(
        self, check: Check, failure: str, *, lies: bool = False
    ) -> Callable[[Break], Break]:
        """Registers a function that breaks something; its docstring says what."""
        return self._registering(check, failure, lies)

    def not_caught(self, reason: str) -> Callable[[Break], Break]:
        return self._registering(None, reason, lies=True)

    def _registering(
        self, check: Check | None, failure: str, lies: bool
    ) -> Callable[[Break], Break]:
        def register(install: Break) -> Break:
            says = " ".join((install.__doc__ or "").split())
            name = install.__name__
            self.all.append(Mutant(name, self.api, says, self.kind, install, check, failure, lies))
            return install

        return register


def exercised(name: str) -> str:
    """What stderr has of a mutant that was met."""
    return f"the mutant {name} was exercised"


def install(mutants: Iterable[Mutant], switched_on: Callable[[], str]) -> None:
    """Puts all of them into this process. `switched_on` tells the name of the one that lies."""
    for mutant in mutants:
        mutant.install(_replacing(mutant.name, switched_on))


def _replacing(mutant: str, switched_on: Callable[[], str]) -> Replace:
    met = functools.cache(lambda: print(exercised(mutant), file=sys.stderr, flush=True))

    def lies() -> bool:
        if switched_on() != mutant:
            return False
        met()
        return True

    return functools.partial(replace, lies)


def replace(lies: Callable[[], bool], owner: object, name: str, lie: Callable[..., Any]) -> None:
    """Gives `owner` another function, which is `lie` while `lies` says so.

    Raises TypeError if its parameters are not those of the one it had, and AttributeError if it
    had none: callers would fail, which is no lie.
    """
    original = getattr(owner, name)
    if (wanted := _parameters(original)) != (given := _parameters(lie)):
        raise TypeError(f"{name} takes {wanted}, and what is to replace it {given}")

    @functools.wraps(lie)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return (lie if lies() else original)(*args, **kwargs)

    @functools.wraps(lie)
    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return await (lie if lies() else original)(*args, **kwargs)

    setattr(owner, name, asynchronous if inspect.iscoroutinefunction(lie) else replacement)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, bool]]:
    """The name of each, how it is passed, and whether it may be left out."""
    return [
        (each.name, each.kind, each.default is not each.empty)
        for each in inspect.signature(function).parameters.values()
    ]
