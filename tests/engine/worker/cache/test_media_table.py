"""Media in files: what goes in comes out in another process, and nothing is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.media_table import SavedChunk, from_file, to_file
from specllama.engine.worker.media.registry import MediaRegistry, spans

SIZES = (3, 1, 4)


def interned(registry: MediaRegistry, kind: int) -> list[int]:
    """The tokens of one of a few media."""
    chunk = registry.intern(
        bytes([kind]), 0, n_tokens=SIZES[kind], n_pos=1, is_whole=kind == 1, kind="image"
    )
    return chunk.n_tokens * [chunk.id]


def tokens(registry: MediaRegistry, elements: list[int]) -> list[int]:
    """Media are 0, 1 and 2, everything else is a token."""
    found: list[int] = []
    for each in elements:
        found += interned(registry, each) if each < len(SIZES) else [each]
    return found


@given(st.lists(st.integers(0, 6), max_size=20), st.permutations(range(len(SIZES))))
def test_there_and_back(elements: list[int], known_before: list[int]) -> None:
    here, there = MediaRegistry(), MediaRegistry()
    for kind in known_before:
        interned(there, kind)
    array = np.array(tokens(here, elements), np.int32)
    written, table = to_file(array, here)
    found = from_file(written, table, there)
    assert found.tolist() == tokens(there, elements)
    assert [s.chunk.digest for s in spans(found, there)] == [
        bytes([each]) for each in elements if each < len(SIZES)
    ]
    again = MediaRegistry()
    for kind in reversed(known_before):
        interned(again, kind)
    same = to_file(np.array(tokens(again, elements), np.int32), again)
    assert (same[0].tolist(), same[1]) == (written.tolist(), table), "a file's name is its digest"


CHUNK = SavedChunk(b"a", 0, 3, 3, False, "image")


@pytest.mark.parametrize(
    ("ids", "table"),
    [
        ([-2, -2, -2], []),
        ([-3, -3, -3], [CHUNK]),
        ([-1, 5], [CHUNK]),
        ([-(2**31)], [CHUNK]),
        ([-2, -2], [CHUNK]),
        ([-2, -2, 5, -2], [CHUNK]),
        ([-2, -2, -2], [SavedChunk(b"a", 0, 0, 0, False, "image")]),
        ([-2, -2, -2], [SavedChunk(b"a", 0, 3, 4, False, "image")]),
    ],
)
def test_damaged_data_is_rejected(ids: list[int], table: list[SavedChunk]) -> None:
    with pytest.raises(ValueError, match="a medium"):
        from_file(np.array(ids, np.int32), table, MediaRegistry())
