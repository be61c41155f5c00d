"""The hashes of the beginnings of texts: their format, growing texts, digests of several texts."""

import os
import struct
import subprocess
import sys
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.wire.stats import BLOCK
from specllama.engine.worker.cache.block_hashes import (
    MOST_MEDIA,
    SEED,
    SIZE,
    BlockHashes,
    HashedText,
    digest,
    hashes_of,
    media_hashes,
    medium_hash,
)
from specllama.engine.worker.cache.texts import OWNER, Key
from specllama.engine.worker.media.registry import MediaRegistry
from specllama.engine.worker.tokens import TokenArray

KEYS: tuple[Key, ...] = ((), ((0, 0.5),), ((0, 0.5), (1, 1.0)), ((0, 0.5), (OWNER, 7.0)))
ALL = 1 << 30
texts = st.integers(0, 10 * BLOCK).map(lambda n: tokens(n))


def tokens(n: int, start: int = 0) -> TokenArray:
    return np.arange(start, start + n, dtype=np.int32)


def no_media(id: int) -> bytes:
    raise AssertionError(f"the text has no medium {id}")


def split(data: bytes) -> list[bytes]:
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


def plain(text: TokenArray, key: Key = ()) -> list[bytes]:
    return split(hashes_of(text, key, no_media))


def expected(contents: list[bytes], key: Key = ()) -> list[bytes]:
    """Returns the hashes as the module describes the format."""
    pairs = b"".join(struct.pack("<qd", id, value) for id, value in key)
    chain = [blake2b(SEED + pairs, digest_size=8).digest()]
    for each in contents:
        chain.append(blake2b(chain[-1] + each, digest_size=8).digest())
    return chain[1:]


@pytest.mark.parametrize("key", KEYS)
def test_the_format(key: Key) -> None:
    text = tokens(3 * BLOCK - 1)
    contents = [struct.pack(f"<{BLOCK}i", *text[at : at + BLOCK].tolist()) for at in (0, BLOCK)]
    assert plain(text, key) == expected(contents, key)


def test_the_format_is_the_same_in_every_version() -> None:
    """Processes of two versions serve one model while a server is updated."""
    text = tokens(2 * BLOCK)
    assert hashes_of(text, KEYS[3], no_media).hex() == "2c84c6898d7869769bf58bda56ef7ad9"


@pytest.mark.parametrize("one", KEYS)
@pytest.mark.parametrize("other", KEYS)
def test_keys_have_no_hash_in_common(one: Key, other: Key) -> None:
    text = tokens(4 * BLOCK)
    common = {*plain(text, one)} & {*plain(text, other)}
    assert len(common) == (4 if one == other else 0)


@given(st.integers(0, 5 * BLOCK), st.integers(0, 3 * BLOCK), st.integers(0, 3 * BLOCK))
def test_common_hashes_are_those_of_common_blocks(n: int, one: int, other: int) -> None:
    first = np.concatenate((tokens(n), tokens(one, 1000)))
    second = np.concatenate((tokens(n), tokens(other, 2000)))
    n_common = n // BLOCK
    a, b = plain(first), plain(second)
    assert a[:n_common] == b[:n_common]
    assert not {*a[n_common:]} & {*b[n_common:]}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4 * BLOCK), st.integers(0, 3))))
def test_a_text_that_grows_and_is_cut(changes: list[tuple[bool, int, int]]) -> None:
    """The remembered hashes are those of the text, whenever they were computed."""
    text, hashes = tokens(0), BlockHashes()
    for number, (grows, n, n_new) in enumerate(changes):
        if grows:
            text = np.concatenate((text, tokens(n, 1000 * number)))
        else:
            text = text[:n]
            hashes.cut(n)
        found = split(hashes.of(text, (), no_media, n_new))
        assert found == plain(text)[: len(found)]
        assert len(found) == len(hashes)
    assert split(hashes.of(text, (), no_media)) == plain(text)


def test_a_copy_is_independent() -> None:
    text, hashes = tokens(4 * BLOCK), BlockHashes()
    hashes.of(text, (), no_media)
    copy = hashes.beginning(3 * BLOCK - 1)
    assert len(copy) == 2
    other = np.concatenate((text[: 2 * BLOCK], tokens(BLOCK, 500)))
    assert split(copy.of(other, (), no_media)) == plain(other)
    assert split(hashes.of(text, (), no_media, 0)) == plain(text)


# ---- media -------------------------------------------------------------------------------


def pictured(registry: MediaRegistry, *digests: bytes) -> TokenArray:
    """Returns a text with a picture of 20 tokens for each of `digests`, and 20 tokens between."""
    parts = [tokens(BLOCK)]
    for each in digests:
        chunk = registry.intern(each, 0, n_tokens=20, n_pos=20, is_whole=False, kind="image")
        parts += [chunk.tokens(), tokens(20)]
    return np.concatenate(parts)


def test_media_are_hashed_by_their_contents() -> None:
    here, there = MediaRegistry(), MediaRegistry()
    pictured(there, b"z", b"b")  # the same ids stand for other media there
    text, same = pictured(here, b"a", b"b"), pictured(there, b"a", b"b")
    assert text.tolist() != same.tolist()
    found = split(hashes_of(text, (), here.name_of))
    assert found == split(hashes_of(same, (), there.name_of))
    assert len(found) == len(text) // BLOCK == 3
    other = split(hashes_of(pictured(here, b"a", b"c"), (), here.name_of))
    assert (other[:2], other[2] == found[2]) == (found[:2], False)


def test_the_format_of_media() -> None:
    registry = MediaRegistry()
    text = pictured(registry, b"a", b"b")[: 3 * BLOCK]
    numbers = np.maximum(text, -1).tolist()
    contents = [
        struct.pack(f"<{BLOCK}i", *numbers[at : at + BLOCK]) for at in range(0, 3 * BLOCK, BLOCK)
    ]
    contents[1] += b"a" + bytes(4)
    contents[2] += b"b" + bytes(4)
    assert split(hashes_of(text, (), registry.name_of)) == expected(contents)


# ---- digests -----------------------------------------------------------------------------


def hashed(*parts: TokenArray, key: Key = ()) -> HashedText:
    return HashedText(np.concatenate(parts), key, BlockHashes())


def test_a_digest_has_each_block_once() -> None:
    common = tokens(3 * BLOCK)
    first, second = hashed(common, tokens(BLOCK, 500)), hashed(common, tokens(2 * BLOCK, 900))
    found = split(digest([first, second, first], no_media, ALL))
    assert found == plain(first.tokens) + plain(second.tokens)[3:]


@given(st.lists(st.tuples(texts, st.integers(0, 3), st.integers(0, 3)), max_size=6))
def test_a_digest_of_any_texts(parts: list[tuple[TokenArray, int, int]]) -> None:
    found = [hashed(text, tokens(n * BLOCK, 1000 * own)) for text, n, own in parts]
    every = [each for text in found for each in plain(text.tokens)]
    whole = split(digest(found, no_media, ALL))
    assert whole == [*dict.fromkeys(every)]
    for most in (0, 1, len(whole) // 2, len(whole)):
        assert split(digest(found, no_media, most)) == whole[:most]


def test_a_digest_hashes_little_at_a_time() -> None:
    """The first texts come first; later digests hash the rest."""
    found = [hashed(tokens(3 * BLOCK, 100 * number)) for number in range(3)]
    whole = [each for text in found for each in plain(text.tokens)]
    lengths = [len(split(digest(found, no_media, ALL, n_new=2))) for _ in range(6)]
    assert lengths == [2, 4, 6, 8, 9, 9]
    assert split(digest(found, no_media, ALL, n_new=0)) == whole


def test_nothing_is_hashed_that_does_not_fit() -> None:
    found = [hashed(tokens(3 * BLOCK, 100 * number)) for number in range(3)]
    digest(found, no_media, 3)
    assert [len(each.hashes) for each in found] == [3, 0, 0]


PROGRAM = """
import numpy as np
from specllama.engine.worker.cache.block_hashes import hashes_of
key = ((0, 0.5), (-1, 7.0))
print(hashes_of(np.arange(200, dtype=np.int32), key, str.encode).hex())
"""


@pytest.mark.slow
def test_two_processes_compute_the_same() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {hashes_of(tokens(200), KEYS[3], no_media).hex()}


def test_names_of_media_are_looked_up_once() -> None:
    """Only for new blocks."""
    registry, asked = MediaRegistry(), list[int]()

    def name(id: int) -> bytes:
        asked.append(id)
        return registry.name_of(id)

    text, hashes = pictured(registry, b"a", b"b"), BlockHashes()
    hashes.of(text[: 2 * BLOCK], (), name)
    hashes.of(text, (), name)
    hashes.of(text, (), name)
    assert len(asked) == 2


def test_the_hashes_of_encoded_media_are_bounded() -> None:
    def name(id: int) -> bytes:
        return id.to_bytes(4, "little")

    ids = range(MOST_MEDIA + 5)
    found = media_hashes(ids, name, 2 * MOST_MEDIA)
    assert len(found) == SIZE * MOST_MEDIA
    assert found.endswith(medium_hash(name(MOST_MEDIA + 4)))
    assert media_hashes(ids, name, 2) == b"".join(map(medium_hash, map(name, ids[-2:])))
    assert media_hashes(ids, name, 0) == media_hashes([], name, 9) == b""
