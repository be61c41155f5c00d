"""A mutant: a server that is broken in one way, which a check of the kit has to notice.

The server itself is intact. A proxy in front of it (`contract_tests.kit.mutants.proxy`) changes
requests and answers, so any server can be used.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from contract_tests.kit.mutants.exchange import Mutation
from contract_tests.kit.server import Server

Check: TypeAlias = Callable[[Server], None]
Make: TypeAlias = Callable[[], Mutation]
Kind = Literal["one model", "router", "seeing", "embedder", "reranker", "limited key"]
"""The kind of server that a mutant needs."""
KINDS: tuple[Kind, ...] = (
    "one model",
    "router",
    "seeing",
    "embedder",
    "reranker",
    "limited key",
)


class Mutant(NamedTuple):
    """One defect, the check of the kit that has to fail, and a pattern for the message of that
    failure. Without a check, `failure` is the reason why no check can fail.

    `make` is called each time the mutant is switched on, so a mutation starts without state. If
    `as_described` is true, the form of all answers is as described, and only their content is
    wrong.
    """

    name: str
    api: str
    says: str
    kind: Kind
    make: Make
    check: Check | None
    failure: str
    as_described: bool


class Mutants:
    """The mutants of one API, in the order of their definition."""

    def __init__(self, api: str, kind: Kind = "one model") -> None:
        self.api = api
        self.kind = kind
        self.all: list[Mutant] = []

    def caught_by(
        self, check: Check, failure: str, *, as_described: bool = False
    ) -> Callable[[Make], Make]:
        """Registers a function that makes a mutation; its docstring describes the defect."""
        return self._registering(check, failure, as_described)

    def not_caught(self, reason: str) -> Callable[[Make], Make]:
        return self._registering(None, reason, as_described=True)

    def _registering(
        self, check: Check | None, failure: str, as_described: bool
    ) -> Callable[[Make], Make]:
        def register(make: Make) -> Make:
            says = " ".join((make.__doc__ or "").split())
            self.all.append(
                Mutant(make.__name__, self.api, says, self.kind, make, check, failure, as_described)
            )
            return make

        return register
