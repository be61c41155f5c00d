"""A buffer of tokens that grows, and a set of tokens."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.tokens import TokenArray, TokenBuffer, TokenSet

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


@given(st.sets(st.integers(0, 199)), st.integers(1, 200))
def test_a_set_has_the_tokens_whose_bits_are_set(members: set[int], n_vocab: int) -> None:
    flags = np.zeros(200, np.bool_)
    flags[[*members]] = True
    bits = np.packbits(flags, bitorder="little").tobytes() + bytes(7)
    wanted = sorted(token for token in members if token < n_vocab)
    # With many empty bytes, only the others are unpacked.
    for found in (TokenSet(bits, n_vocab), TokenSet(bits + bytes(1000), n_vocab)):
        assert len(found) == len(wanted)
        assert found.ids.tolist() == wanted
        assert found.ids.dtype == np.int32
        everything = np.arange(n_vocab, dtype=np.int32)
        assert np.flatnonzero(found.among(everything)).tolist() == wanted
        assert [token for token in range(n_vocab) if token in found] == wanted


@given(st.sets(st.integers(0, 199)))
def test_a_set_of_tokens(members: set[int]) -> None:
    assert TokenSet.of([*members], 200).ids.tolist() == sorted(members)
