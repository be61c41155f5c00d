"""Where proposals come from: tokens that may follow a text, evaluated before they are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.tokens import TokenBuffer


class SourceState:
    """What a source knows of one text, from the first time that it is asked what follows there
    until the sequence leaves its slot. The request's `ProposalRecord` holds it."""

    is_unread = False
    """True if the source was asked last and has read only a part of the text so far."""

    def __init__(self, tokens: TokenBuffer, key: Key) -> None:
        """`tokens` are the text, which grows and changes. Only texts under the same `key` may be
        used for it."""
        self.tokens = tokens
        self.key = key

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        """So many of the last proposal's tokens were confirmed. Of a text that ends in a step, this
        is called after `leave`."""

    def leave(self) -> None:
        """The sequence has left its slot."""


S = TypeVar("S", bound=SourceState)


@dataclass(frozen=True, slots=True)
class Ask(Generic[S]):
    """At most `n` tokens are wanted that may follow the text of `state`."""

    state: S
    n: int
    p_min: float = 0.0  # how sure a source has to be, if it can tell


class ProposalSource(Protocol[S]):
    """Where proposals of one kind come from. Belongs to the thread that steps."""

    name: str

    def begin(self, tokens: TokenBuffer, key: Key) -> S:
        """What it knows of a text that it is asked for the first time."""

    def propose(self, asks: Sequence[Ask[S]]) -> list[list[int]]:
        """The tokens proposed for each of `asks`, at most its `n`; none where it knows none."""

    def close(self) -> None:
        """Frees what it holds. Texts may still leave."""


AnySource: TypeAlias = ProposalSource[Any]
"""One of several sources, each of which knows other things of a text."""
