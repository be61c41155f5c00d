"""The evaluations that come before the first request."""

from llama_cpp import llama_cpp as C

from specllama.engine import system
from specllama.engine.worker.backend.context import Context

CHUNK = 64
"""Tokens of one sequence. From so many on, flash attention on the CPU takes another path."""
CHUNK_SECONDS = 1.0
"""The most time that they may take, judged by fewer: a large model on a slow machine does
without."""
SMALL = 10**9
"""Parameters of a model that is worth it anywhere, whatever a busy machine's clock says."""
FEW = 8
"""Tokens of several sequences, enough for the kernels that multiply several rows at once."""


def warm_up(context: Context) -> None:
    """Evaluate what requests will: so that the first one doesn't wait for weights to be read or
    kernels to be compiled, and one that this machine can't run ends the process now.

    All sequences of `context` must be empty, and are so afterwards. Raises `BackendError`."""
    C.llama_set_warmup(context._ctx, True)  # with all experts
    context.evaluate_any()
    C.llama_set_warmup(context._ctx, False)
    n_trained = context.model.n_ctx_train  # positions behind it may be none at all
    n = min(CHUNK, context.n_ubatch, context.n_batch, context.n_ctx_seq, n_trained)
    n_few = min(FEW, n)
    n_sequences = min(FEW // 2, context.n_seq, n_few)
    seconds = 0.0
    for _ in range(2):  # the second time shows how fast the device is
        start = system.now()
        context.evaluate([n_few // n_sequences] * n_sequences)
        seconds = system.now() - start
    if context.model.n_params <= SMALL or seconds * n <= CHUNK_SECONDS * n_few:
        context.evaluate([n])
    C.llama_perf_context_reset(context._ctx)
