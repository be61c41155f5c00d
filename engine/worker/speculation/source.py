"""The interface of proposal sources: they propose tokens that may follow a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.tokens import TokenBuffer


class SourceState:
    """The state of a source for one text, from the first call for the text until the sequence
    leaves its slot. The request's `ProposalRecord` holds it."""

    is_unread = False
    """True if the source has read only a part of the text in its last call."""

    def __init__(self, tokens: TokenBuffer, key: Key) -> None:
        """`tokens` are the text, which grows and changes. Only texts with the same `key` may be
        used for it."""
        self.tokens = tokens
        self.key = key

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        """Record that `n_accepted` of the last proposal's tokens were confirmed. For a text that
        ends in a step, this is called after `detach`."""

    def detach(self) -> None:
        """Called when the sequence has left its slot."""


S = TypeVar("S", bound=SourceState)


@dataclass(frozen=True, slots=True)
class Ask(Generic[S]):
    """A request for at most `n` tokens that may follow the text of `state`."""

    state: S
    n: int
    p_min: float = 0.0  # minimum probability, for sources that compute one


class ProposalSource(Protocol[S]):
    """A source of proposals. Belongs to the thread that steps."""

    name: str

    def begin(self, tokens: TokenBuffer, key: Key) -> S:
        """The state for a text before its first call."""

    def propose(self, asks: Sequence[Ask[S]]) -> list[list[int]]:
        """The tokens proposed for each of `asks`, at most its `n`; possibly none."""

    def close(self) -> None:
        """Frees all resources. States may still be detached afterwards."""


AnySource: TypeAlias = ProposalSource[Any]
"""A source with any kind of state."""
