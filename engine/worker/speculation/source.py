"""Where proposals come from: tokens that may follow a text, evaluated before they are chosen."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.tokens import TokenBuffer


@dataclass(frozen=True, slots=True)
class Ask:
    """A sequence that tokens are proposed for: at most `n`, to follow `tokens`. Only texts under
    the same `key` may be used."""

    id: int  # of the sequence
    tokens: TokenBuffer
    n_prompt: int
    key: Key
    n: int
    p_min: float = 0.0  # how sure a source has to be, if it can tell


class ProposalSource(Protocol):
    """Where proposals of one kind come from. Belongs to the thread that steps."""

    name: str

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """The tokens proposed for each of `asks`, at most its `n`; none where it knows none."""

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        """So many of the last proposal's tokens were confirmed."""

    def forget(self, id: int) -> None:
        """The sequence has left its slot."""

    def close(self) -> None:
        """Frees what it holds."""


@runtime_checkable
class Reading(Protocol):
    """A source that has to read a text before it can say what follows."""

    @property
    def unread(self) -> Set[int]:
        """The ids of the last asks whose texts it has read a part of so far."""
