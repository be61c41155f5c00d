"""Logits of models with a sliding window are those of the text, whatever is in the batch."""

import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from specllama.engine.worker.backend import Context, Model, initialize
from tests.support.options_support import engine_options
from tools.models.build import ensure

pytestmark = pytest.mark.slow

EXACT = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
N_SEQUENCES = 4
LONGEST = 120


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    initialize()
    model = Model(str(ensure("tiny-window")), engine_options())
    yield model
    model.close()


def alone(model: Model, text: list[int]) -> npt.NDArray[np.float32]:
    """The logits after a text that a separate context evaluates at once."""
    options = engine_options(**EXACT, ctx_size=256, batch_size=256, ubatch_size=256)
    context = Context(model, options, 1, unified=True)
    context.batch.clear()
    last = context.batch.add(text, 0, 0)
    context.decode()
    logits = context.logits(last).copy()
    context.close()
    return logits


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "separate"])
def test_several_micro_batches(model: Model, unified: bool) -> None:
    """For a batch with several sequences, llama.cpp would free cells that the first one needs."""
    ctx_size = 512 if unified else 256 * N_SEQUENCES
    sizes = {"ctx_size": ctx_size, "batch_size": 256, "ubatch_size": 16}
    options = engine_options(**EXACT, **sizes, kv_unified=unified)
    for seed in range(12):
        chance = random.Random(seed)
        context = Context(model, options, N_SEQUENCES, unified)
        texts: list[list[int]] = [[] for _ in range(N_SEQUENCES)]
        for _ in range(12):
            context.batch.clear()
            outputs: list[tuple[int, int]] = []
            for sequence, text in enumerate(texts):
                room = min(context.n_batch - context.batch.n_tokens, LONGEST - len(text))
                n = min(room, chance.choice([0, 1, 20, 60]))
                if n > 0:
                    new = [chance.randrange(10, 300) for _ in range(n)]
                    outputs.append((sequence, context.batch.add(new, len(text), sequence)))
                    text += new
            if not outputs:
                continue
            context.decode()
            for sequence, index in outputs:
                assert np.allclose(context.logits(index), alone(model, texts[sequence]), atol=0.02)
        context.close()
