"""The warm-up evaluations before the first request."""

from llama_cpp import llama_cpp as C

from specllama.engine.worker.backend.context import Context

CHUNK = 64
"""Tokens of one sequence from which on flash attention on the CPU takes another path."""
CHUNK_SECONDS = 1.0
"""Maximum estimated seconds of a chunk: a large model on a slow machine skips it."""
SMALL = 10**9
"""Parameters of a model up to which the chunk is never skipped, as a busy machine's times
mislead."""
FEW = 8
"""Tokens of several sequences that are enough to use the kernels for several rows."""


def warm_up(context: Context) -> None:
    """Evaluate the kinds of batches that requests use. So the first request doesn't wait for
    weights to be read or kernels to be compiled, and a model that this machine can't run ends the
    process now.

    All sequences of `context` must be empty, and are so afterwards. Raises `BackendError`."""
    C.llama_set_warmup(context._ctx, True)  # with all experts
    context.evaluate([1], erase=False)
    C.llama_set_warmup(context._ctx, False)
    n_trained = context.model.n_ctx_train  # later positions may not exist
    n = min(CHUNK, context.n_ubatch, context.n_batch, context.n_ctx_seq, n_trained)
    n_few = min(FEW, n)
    n_sequences = min(FEW // 2, context.n_seq, n_few)
    is_small = context.model.n_params <= SMALL
    seconds = 0.0
    for _ in range(1 if is_small else 2):  # the second run measures the device's speed
        seconds = context.evaluate([n_few // n_sequences] * n_sequences, erase=False)
    if is_small or seconds * n <= CHUNK_SECONDS * n_few:
        context.evaluate([n], erase=False)
    context.clear(erase=True)  # once, since that takes long for a large cache
    C.llama_perf_context_reset(context._ctx)
