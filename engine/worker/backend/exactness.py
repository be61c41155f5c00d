"""Checks whether `--reproducible` is possible: devices don't support it, and only some CPU kernels
do."""

import logging

import numpy as np
import numpy.typing as npt

from specllama.engine.options import EngineOptions
from specllama.engine.options.declaration import replaced
from specllama.engine.worker.backend import Context
from specllama.engine.worker.backend.library import devices

log = logging.getLogger(__name__)

N_TOKENS = 80
"""Enough rows that every kernel of llama.cpp takes another path than for a single row."""


def promised(options: EngineOptions) -> EngineOptions:
    """`options`, with `--reproducible off` if it is `auto` and layers may be on a device: devices
    aren't reproducible, and most lack attention for the cache types that it needs. To be called
    after `initialize`."""
    compute = options.compute
    on_devices = compute.n_gpu_layers != 0 and [*compute.device] != ["none"] and bool(devices())
    if options.context.reproducible != "auto" or not on_devices:
        return options
    return replaced(options, reproducible="off")


def check_promise(context: Context, options: EngineOptions) -> None:
    """Warns if `--reproducible` is on and not possible. See `depends_on_batch`."""
    if options.is_reproducible() and depends_on_batch(context):
        log.warning(
            "--reproducible is not possible here: what this model's kernels compute for a token "
            "depends on the rest of the batch (docs/reproducibility.md lists what works)"
        )


def depends_on_batch(context: Context) -> bool:
    """True if the logits of a token depend on the other tokens in its batch, with all adapters
    active.

    Evaluates a text at once, and again in pieces. The KV cache must be empty, and is empty
    afterwards; no adapter is active then. Raises `BackendError`.
    """
    n = min(N_TOKENS, context.n_ctx_seq - 1, context.n_batch)
    context.set_adapters((id, 1.0) for id in range(len(context.model.adapters)))
    try:
        at_once = _last_logits(context, [n])
        in_pieces = _last_logits(context, [n // 2, n - n // 2 - 1, 1])
    finally:
        context.set_adapters(())
    return not np.array_equal(at_once, in_pieces)


def _last_logits(context: Context, lengths: list[int]) -> npt.NDArray[np.float32]:
    """The last logits of a random text that is evaluated in pieces of these lengths."""
    text = np.random.default_rng(0).integers(
        context.model.n_vocab, size=sum(lengths), dtype=np.int32
    )
    start = last = 0
    for n in filter(None, lengths):
        context.batch.clear()
        last = context.batch.add(text[start : start + n], start, sequence=0)
        context.decode()
        start += n
    logits = context.logits(last).copy()
    context.remove(0, 0)
    return logits
