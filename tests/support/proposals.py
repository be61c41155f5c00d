"""Texts that repeat themselves, growing step by step, for sources of proposals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
from hypothesis import strategies as st

from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.source import Ask, ProposalSource, S
from specllama.engine.worker.tokens import TokenBuffer

PIECES = st.lists(
    st.lists(st.integers(0, 3), max_size=12) | st.tuples(st.just("again"), st.integers(0, 60)),
    max_size=12,
)


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Generates texts of few different tokens, with repeated parts."""
    text: list[int] = []
    for piece in draw(PIECES):
        if isinstance(piece, tuple):
            text += text[piece[1] : piece[1] + 12]
        else:
            text += piece
    return text


STEPS = st.lists(st.integers(1, 30), max_size=30)
"""The number of tokens before each proposal."""


def growing(text: list[int], steps: list[int]) -> Iterator[TokenBuffer]:
    """Yields one buffer with more of `text` each time, and with all of it in the end."""
    buffer, at = TokenBuffer(np.empty(0, np.int32)), 0
    for step in [*steps, len(text)]:
        for token in text[at : at + step]:
            buffer.append(token)
        at += step
        yield buffer


@dataclass
class Text:
    """A request for at most `n` tokens after `tokens`, the present tokens of the running text
    `id`."""

    tokens: TokenBuffer
    n: int = 8
    id: int = 1
    key: Key = ()
    p_min: float = 0.0


def ask(
    tokens: TokenBuffer | Sequence[int],
    n: int = 8,
    *,
    id: int = 1,
    key: Key = (),
    p_min: float = 0.0,
) -> Text:
    if not isinstance(tokens, TokenBuffer):
        tokens = TokenBuffer(np.array(tokens, np.int32))
    return Text(tokens, n, id, key, p_min)


class Running(Generic[S]):
    """The states of running texts in `source`, by their ids. A request has such a state."""

    def __init__(self, source: ProposalSource[S]) -> None:
        self.source = source
        self.states: dict[int, S] = {}

    def asked(self, texts: Sequence[Text]) -> list[Ask[S]]:
        """Returns what the source gets: the state of each text, with its present tokens."""
        for text in texts:
            if text.id not in self.states:
                empty = TokenBuffer(np.empty(0, np.int32))
                self.states[text.id] = self.source.begin(empty, text.key)
            state = self.states[text.id]
            assert state.key == text.key
            state.tokens.remove(0, len(state.tokens))
            state.tokens.extend(text.tokens.view())
        return [Ask(self.states[text.id], text.n, text.p_min) for text in texts]

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        return self.source.propose(self.asked(texts))

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        if id in self.states:
            self.states[id].verified(n_proposed, n_accepted)

    def leave(self, id: int) -> None:
        """Ends the text `id`, if it is running."""
        if id in self.states:
            self.states.pop(id).detach()


def propose(running: Running[S], text: Text) -> list[int]:
    [found] = running.propose([text])
    assert len(found) <= text.n
    return found
