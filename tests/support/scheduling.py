"""Drives the scheduler with texts and steps whose sampled tokens are given."""

from typing import Any

import numpy as np

from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.fake_kv import FakeKV
from tests.support.media_texts import spans

A, B = ((0, 1.0),), ((0, 0.5), (1, 1.0))


def sequence(id: int, tokens: list[int], **kwargs: Any) -> Sequence:
    array = np.array(tokens, np.int32)
    given = {"spans": spans(tokens), "group": id, **kwargs}
    return Sequence(id=id, tokens=TokenBuffer(array), n_prompt=len(tokens), **given)


def scheduler(kv: FakeKV, n_slots: int = 2, **kwargs: Any) -> Scheduler:
    arguments: dict[str, Any] = {"n_batch": 8, "n_cells": kv.n_cells, **kwargs}
    return Scheduler(kv, n_slots=n_slots, n_ctx=kv.n_ctx, **arguments)


def run_step(
    s: Scheduler, kv: FakeKV, next_token: int = 7, n_prompt: int | None = None
) -> list[Chunk]:
    chunks = s.plan(n_prompt)
    kv.evaluate(chunks)
    s.advance(chunks)
    for chunk in chunks:
        if chunk.is_last:
            chunk.sequence.append(next_token)
    return chunks


def finish_one(s: Scheduler, kv: FakeKV, id: int, tokens: list[int], **kwargs: Any) -> Sequence:
    """Serves a text alone up to its first token."""
    one = sequence(id, tokens, **kwargs)
    s.submit(one)
    while not one.generating:
        run_step(s, kv)
    s.finish(one)
    return one


def together(kv: FakeKV, n: int, **kwargs: Any) -> tuple[Scheduler, list[Sequence]]:
    """Submits `n` texts at once, with 32 common tokens and 4 own ones each."""
    s = scheduler(kv, n_slots=n, n_sequences=2 * n, **kwargs)
    prefix = list(range(32))
    texts = [sequence(id, [*prefix, *4 * [id]]) for id in range(100, 100 + n)]
    for one in texts:
        s.submit(one)
    return s, texts
