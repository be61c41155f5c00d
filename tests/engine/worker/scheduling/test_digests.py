"""The blocks of cached texts that a new sequence could use."""

from typing import Any

import numpy as np
import pytest

from specllama.engine.wire.stats import BLOCK
from specllama.engine.worker.cache.block_hashes import SIZE, digest, hashes_of
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.scheduling.scheduler import Scheduler
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.scheduling import A, finish_one, run_step, scheduler, sequence

N_CTX = 8 * BLOCK
OWNED = key_of([], 1)
UNLIMITED = 1 << 30


def no_media(id: int) -> bytes:
    raise AssertionError(f"no text has a medium, such as {id}")


def found(s: Scheduler, n_new: int = UNLIMITED) -> list[bytes]:
    return split(digest(s.slots.usable(), no_media, UNLIMITED, n_new))


def blocks(tokens: list[int], key: Key = ()) -> list[bytes]:
    return split(hashes_of(np.array(tokens, np.int32), key, no_media))


def split(data: bytes) -> list[bytes]:
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


def text(n_blocks: int, own: int = 0) -> list[int]:
    return [1000 * own + n for n in range(n_blocks * BLOCK)]


def stage(n_cells: int | None = 4 * N_CTX, **kwargs: Any) -> tuple[Scheduler, FakeKV]:
    kv = FakeKV(n_cells, N_CTX)
    return scheduler(kv, n_batch=BLOCK, n_sequences=6, **kwargs), kv


@pytest.mark.parametrize("n_cells", [4 * N_CTX, None])
def test_a_finished_text(n_cells: int | None) -> None:
    """All evaluated tokens count, those of the answer, too."""
    s, kv = stage(n_cells)
    one = sequence(1, text(3)[:-2])
    s.submit(one)
    while len(one.tokens) < 3 * BLOCK + 1:
        run_step(s, kv)
    s.finish(one)
    assert found(s) == blocks([*text(3)[:-2], 7, 7])
    assert len(found(s)) == 3


def test_a_running_prompt_grows() -> None:
    s, kv = stage()
    prompt = [*text(3), 1, 2]
    one = sequence(1, prompt)
    s.submit(one)
    assert not found(s)
    for n in (1, 2, 3):
        run_step(s, kv)
        assert found(s) == blocks(prompt)[:n]
    while len(one.tokens) < 5 * BLOCK:
        run_step(s, kv)
    assert found(s) == blocks(prompt), "no other sequence can share the answer yet"
    answered = one.tokens.view(0, one.n_past).tolist()
    s.finish(one)
    assert found(s) == blocks(answered)


def test_the_text_that_was_used_last_comes_first() -> None:
    s, kv = stage()
    for own in (1, 2):
        finish_one(s, kv, own, text(2, own))
    finish_one(s, kv, 3, text(2, 1))
    running = sequence(4, [*text(2, 3), 5])
    s.submit(running)
    for _ in range(3):
        run_step(s, kv)
    assert found(s) == [*blocks(text(2, 3)), *blocks(text(2, 1)), *blocks(text(2, 2))]


def test_texts_with_other_keys_have_no_block_in_common() -> None:
    s, kv = stage()
    expected: set[bytes] = set()
    for id, key in enumerate(((), A, OWNED), start=1):
        finish_one(s, kv, id, text(2), key=key)
        expected.update(blocks(text(2), key))
        assert {*found(s)} == expected
    assert len(expected) == 6


def test_an_evicted_text_is_gone() -> None:
    s, kv = stage()
    finish_one(s, kv, 1, text(2, 1))
    finish_one(s, kv, 2, text(2, 2))
    assert s.cache.evict()
    assert found(s) == blocks(text(2, 2))
    assert s.cache.evict()
    assert not found(s)


def test_a_text_in_the_second_tier_stays() -> None:
    kv = FakeKV(4 * N_CTX, N_CTX)
    s = scheduler(kv, n_batch=BLOCK, n_sequences=6, tier=FakeTier(kv))
    finish_one(s, kv, 1, text(2, 1))
    finish_one(s, kv, 2, text(2, 2))
    assert s.cache.evict()
    assert found(s) == [*blocks(text(2, 2)), *blocks(text(2, 1))]


def test_a_text_that_continues_keeps_its_hashes() -> None:
    """Only new tokens are hashed when a text is taken over, or its beginning is shared."""
    s, kv = stage()
    finish_one(s, kv, 1, text(3))
    assert len(found(s)) == 3
    taken, shared = sequence(2, [*text(3), 9, 9]), sequence(3, [*text(2), *text(1, 5), 9])
    for each in (taken, shared):
        s.submit(each)
    while not (taken.generating and shared.generating):
        run_step(s, kv)
    assert found(s, n_new=0) == blocks(text(3))
    assert len(s.cache.hashes(shared.seq_id)) == 2
    assert {*found(s)} == {*blocks(text(3)), *blocks([*text(2), *text(1, 5)])}


def test_a_text_is_cut_where_another_one_takes_it_over() -> None:
    s, kv = stage(None, n_slots=1)
    finish_one(s, kv, 1, text(4))
    assert len(found(s)) == 4
    other = [*text(1), *text(2, 5)]
    finish_one(s, kv, 2, other)
    assert found(s) == blocks(other)


def test_moved_tokens_do_not_count() -> None:
    s, kv = stage()
    one = sequence(1, text(4))
    s.submit(one)
    while not one.generating:
        run_step(s, kv)
    assert len(found(s)) == 4
    assert s.shift(one, BLOCK + 3, BLOCK)
    assert found(s) == blocks(text(1))
    s.finish(one)
    assert found(s) == blocks(text(1))


def test_memory_that_cannot_be_cut() -> None:
    """A text counts up to its end, or up to the checkpoint to which it can go back."""
    kv = FakeKV(4 * N_CTX, N_CTX, cuttable=False)
    s = scheduler(kv, n_batch=BLOCK, n_sequences=6, n_checkpoints=2)
    finish_one(s, kv, 1, text(3))
    assert found(s) == blocks(text(3))
