"""Media chunks in arrays of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.media.registry import (
    GRACE,
    LEAST,
    ChunkSpan,
    MediaChunk,
    MediaRegistry,
    position,
    spans,
)
from specllama.engine.worker.tokens import TokenArray


def intern(
    registry: MediaRegistry, name: str, n_tokens: int = 3, index: int = 0, n_pos: int | None = None
) -> MediaChunk:
    return registry.intern(
        name.encode(),
        index,
        n_tokens=n_tokens,
        n_pos=n_tokens if n_pos is None else n_pos,
        is_whole=False,
        kind="image",
    )


def join(*parts: MediaChunk | list[int]) -> TokenArray:
    arrays = [p.tokens() if isinstance(p, MediaChunk) else np.array(p, np.int32) for p in parts]
    return np.concatenate(arrays).astype(np.int32)


def test_the_same_chunk_has_the_same_id_and_others_have_others() -> None:
    registry = MediaRegistry()
    cat, dog = intern(registry, "cat"), intern(registry, "dog")
    assert intern(registry, "cat") is cat
    assert len({cat.id, dog.id, intern(registry, "cat", index=1).id}) == 3
    assert max(cat.id, dog.id) < -1
    assert registry.of(dog.id) is dog


def test_a_chunk_that_has_changed_is_an_error() -> None:
    registry = MediaRegistry()
    intern(registry, "cat", 3)
    with pytest.raises(ValueError, match="has changed"):
        intern(registry, "cat", 4)


def test_a_forgotten_medium_gets_a_new_id() -> None:
    now = [0.0]
    registry = MediaRegistry(lambda: now[0])
    cat, dog = intern(registry, "cat"), intern(registry, "dog")
    now[0] = GRACE + 1
    registry.keep([dog.id, -999])
    assert len(registry) == 1
    assert registry.of(dog.id) is dog
    with pytest.raises(KeyError):
        registry.of(cat.id)
    assert intern(registry, "cat").id not in {cat.id, dog.id}


def test_a_recently_requested_medium_stays() -> None:
    now = [0.0]
    registry = MediaRegistry(lambda: now[0])
    cat, dog, fish = (intern(registry, name) for name in ("cat", "dog", "fish"))
    now[0] = GRACE
    registry.of(cat.id)
    intern(registry, "dog")
    registry.keep([])
    assert len(registry) == 2
    assert registry.of(cat.id) is cat
    assert intern(registry, "dog") is dog
    assert intern(registry, "fish").id != fish.id


def test_it_is_tidied_when_there_are_many_and_not_all_the_time() -> None:
    now = [0.0]
    registry = MediaRegistry(lambda: now[0])
    kept = [intern(registry, str(i)).id for i in range(LEAST + 1)]
    assert not registry.is_full
    now[0] = GRACE
    assert registry.is_full
    registry.keep(kept)
    assert len(registry) == LEAST + 1
    assert not registry.is_full
    now[0] *= 2
    assert not registry.is_full  # nothing has come since
    for i in range(LEAST + 2):
        intern(registry, f"new {i}")
    assert registry.is_full
    now[0] *= 2
    registry.keep([])
    assert not len(registry)


@st.composite
def texts(draw: st.DrawFn) -> tuple[MediaRegistry, list[MediaChunk | list[int]]]:
    """A text of runs of tokens and of chunks, also of the same chunk twice in a row."""
    registry = MediaRegistry()
    known = [intern(registry, str(n), n, n_pos=draw(st.integers(1, n))) for n in (1, 2, 5)]
    tokens = st.lists(st.integers(0, 9), max_size=4)
    return registry, draw(st.lists(tokens | st.sampled_from(known), max_size=12))


@given(texts())
def test_spans_and_positions(text: tuple[MediaRegistry, list[MediaChunk | list[int]]]) -> None:
    registry, parts = text
    wanted, positions, n, at = [], [], 0, 0
    for part in parts:
        if isinstance(part, MediaChunk):
            wanted.append(ChunkSpan(n, n + part.n_tokens, part))
            positions += [at] * part.n_tokens
            n, at = n + part.n_tokens, at + part.n_pos
        else:
            positions += range(at, at + len(part))
            n, at = n + len(part), at + len(part)
    found = spans(join(*parts) if parts else np.array([], np.int32), registry)
    assert found == wanted
    assert [position(found, index) for index in range(n + 1)] == [*positions, at]


def test_a_cut_medium_is_an_error() -> None:
    registry = MediaRegistry()
    cat = intern(registry, "cat", 3)
    for cut in (join([1], cat)[:3], join(cat, [1], cat)[2:], join(cat, cat)[:5]):
        with pytest.raises(ValueError, match="is cut"):
            spans(cut, registry)
    with pytest.raises(KeyError):
        spans(np.array([-77], np.int32), registry)
