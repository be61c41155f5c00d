"""Computes a model's logits with different options."""

from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.engine.worker.backend import Context, Model, initialize
from tests.support.models import random_model
from tests.support.options_support import engine_options

PROMPT = [300, 301, 302]


def logits(path: str = "", **options: Any) -> npt.NDArray[np.float32]:
    """Returns the logits after the prompt, by a model that is loaded and computed with
    `options`."""
    initialize()
    o = engine_options(ctx_size=256, flash_attn="off", **{"threads": 1, **options})
    model = Model(path or str(random_model()), o)
    try:
        context = Context(model, o, 1, True)
        last = context.batch.add(PROMPT, 0, sequence=0)
        context.decode()
        from llama_cpp import llama_cpp

        found = llama_cpp.llama_get_logits_ith(context._ctx, last)
        result = np.ctypeslib.as_array(found, (model.n_vocab,)).copy()
        context.close()
    finally:
        model.close()
    return result
