"""A buffer of tokens that grows."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.tokens import TokenArray, TokenBuffer

texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def tokens(text: Sequence[int]) -> TokenArray:
    return np.array(text, np.int32)


@given(st.lists(texts))
def test_a_buffer_grows_by_many(pieces: list[list[int]]) -> None:
    buffer = TokenBuffer(tokens([]))
    for piece in pieces:
        buffer.extend(tokens(piece))
        buffer.append(9)
    assert buffer.view().tolist() == [t for piece in pieces for t in [*piece, 9]]
