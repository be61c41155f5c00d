"""Texts that repeat themselves, growing step by step, for sources of proposals."""

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.speculation.source import Ask, ProposalSource
from specllama.engine.worker.tokens import TokenBuffer

PIECES = st.lists(
    st.lists(st.integers(0, 3), max_size=12) | st.tuples(st.just("again"), st.integers(0, 60)),
    max_size=12,
)


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Few different tokens, and parts that come again."""
    text: list[int] = []
    for piece in draw(PIECES):
        if isinstance(piece, tuple):
            text += text[piece[1] : piece[1] + 12]
        else:
            text += piece
    return text


STEPS = st.lists(st.integers(1, 30), max_size=30)
"""How many tokens are there before each proposal."""


def growing(text: list[int], steps: list[int]) -> Iterator[TokenBuffer]:
    """One buffer, which has more of `text` each time, and all of it in the end."""
    buffer, at = TokenBuffer(np.empty(0, np.int32)), 0
    for step in [*steps, len(text)]:
        for token in text[at : at + step]:
            buffer.append(token)
        at += step
        yield buffer


def ask(tokens: TokenBuffer | list[int], n: int = 8, *, id: int = 1, key: Key = ()) -> Ask:
    if isinstance(tokens, list):
        tokens = TokenBuffer(np.array(tokens, np.int32))
    return Ask(id, tokens, 0, key, n)


def propose(source: ProposalSource, asked: Ask) -> list[int]:
    [found] = source.propose([asked])
    assert len(found) <= asked.n
    return found
