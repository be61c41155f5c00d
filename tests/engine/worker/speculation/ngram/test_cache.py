"""ngram-cache against counting, and files of llama-lookup-create."""

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import BackendError
from specllama.engine.worker.speculation.ngram.cache import MAX_HITS, N_MAX, NgramCache
from specllama.engine.worker.speculation.ngram.lookup import LookupFile
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.proposals import STEPS, Running, ask, growing, propose, texts

LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
Entries = dict[tuple[int, ...], dict[int, int]]


def counted(text: list[int], last: list[int]) -> int | None:
    """The next token by the last occurrences of the longest n-gram that decides it."""
    for n in range(min(4, len(last)), 0, -1):
        ngram = last[-n:]
        found = [i for i in range(len(text) - 1, n - 1, -1) if text[i - n : i] == ngram]
        counts = Counter(text[i] for i in found[:MAX_HITS])
        for token, count in counts.most_common(1):
            if counts.total() >= LAX[n][0] and 100 * count >= LAX[n][1] * counts.total():
                return token
    return None


@given(texts(), STEPS, st.integers(0, 12))
def test_the_most_frequent_continuation(text: list[int], steps: list[int], n: int) -> None:
    source = Running(NgramCache())
    for buffer in growing(text, steps):
        known = text[: len(buffer)]
        wanted: list[int] = []
        while len(known) >= 2 and len(wanted) < min(n, N_MAX):
            token = counted(known, [*known, *wanted])
            if token is None:
                break
            wanted.append(token)
        assert propose(source, ask(buffer, n)) == wanted


def written(path: Path, entries: Entries) -> str:
    data = b""
    for ngram, followers in entries.items():
        data += struct.pack("<5i", *ngram, *[-1] * (4 - len(ngram)), len(followers))
        data += b"".join(struct.pack("<2i", *pair) for pair in followers.items())
    path.write_bytes(data)
    return str(path)


ENTRIES: st.SearchStrategy[Entries] = st.dictionaries(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    st.dictionaries(st.integers(0, 9), st.integers(1, 99), min_size=1),
    max_size=9,
)


@given(ENTRIES)
def test_a_file_has_the_continuations(
    tmp_path_factory: pytest.TempPathFactory, entries: Entries
) -> None:
    path = written(tmp_path_factory.mktemp("lookup") / "file", entries)
    file = LookupFile(path, n_vocab=8)
    assert len(file) == len(entries)
    for ngram, followers in entries.items():
        assert file.followers(ngram) == {t: n for t, n in followers.items() if t < 8}
    assert file.followers([77]) == {}


@given(ENTRIES, st.binary(min_size=1, max_size=40), st.data())
def test_damaged_files_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, entries: Entries, noise: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lookup") / "file"
    written(path, entries)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:at] + noise + whole[at:])
    try:
        file = LookupFile(str(path), n_vocab=8)
    except BackendError:
        return
    source = Running(NgramCache(file, file))
    assert {*propose(source, ask([1, 2, 3]))} <= {*range(8)}


@pytest.mark.parametrize(
    "numbers",
    [[1], [1, 2, 3, 4, 1, 5], [1, 2, 3, 4, 0], [1, 2, 3, 4, -1, 5, 5], [1, 2, 3, 4, 2**31 - 1]],
)
def test_damaged_files_are_named(tmp_path: Path, numbers: list[int]) -> None:
    path = tmp_path / "file"
    for data in (struct.pack(f"<{len(numbers)}i", *numbers), b"\x00" * 29):
        path.write_bytes(data)
        with pytest.raises(
            BackendError, match=r"file is damaged, or not a file of llama-lookup-create"
        ):
            LookupFile(str(path), 8)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"cannot read .*: No such file or directory"):
        LookupFile(str(tmp_path / "none"), 8)


def test_files_propose_tokens_that_the_text_lacks(tmp_path: Path) -> None:
    static = LookupFile(written(tmp_path / "s", {(1, 2): {3: 5}, (2, 3): {4: 1}}), 99)
    assert propose(Running(NgramCache(static)), ask([1, 2])) == [3]  # one occurrence is too few
    dynamic = LookupFile(written(tmp_path / "d", {(1, 2): {5: 9}, (2, 5): {6: 1, 7: 8}}), 99)
    assert propose(Running(NgramCache(None, dynamic)), ask([1, 2])) == [5, 7]
    assert propose(Running(NgramCache(static, dynamic)), ask([1, 2])) == [5, 7]


def test_the_static_file_weighs_the_texts_proposals(tmp_path: Path) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    assert propose(Running(NgramCache()), ask(text, 1)) == [4]  # of two, the newest
    static = LookupFile(written(tmp_path / "s", {(1, 2): {3: 1}}), 99)
    assert propose(Running(NgramCache(static)), ask(text, 1)) == [3]


def test_a_context_shift() -> None:
    source = Running(NgramCache())
    buffer = TokenBuffer(np.array([*range(40), 0, 1, 2], np.int32))
    assert propose(source, ask(buffer, 2)) == [3, 4]
    buffer.remove(1, 30)
    assert propose(source, ask(buffer, 2)) == []
