"""How a context comes to be, or why it can't."""

import ctypes
import logging
from typing import Any

from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import control_vector, room
from specllama.engine.worker.backend.library import failure, forget_errors, holdings
from specllama.engine.worker.backend.model import Model

log = logging.getLogger("specllama.engine.context")


def created(model: Model, params: Any) -> Any:
    """llama.cpp's context. Raises `BackendError`, with what would fit if there is no memory."""
    forget_errors()
    n_ctx = params.n_ctx or model.n_ctx_train
    holdings.begin_context(n_ctx)
    if context := C.llama_init_from_model(model._model, params):
        return context
    error = failure("cannot create the context")

    def works(n_ctx: int) -> bool:
        params.n_ctx = n_ctx
        holdings.begin_context(n_ctx)
        tried = C.llama_init_from_model(model._model, params)
        if tried:
            C.llama_free(tried)
        return bool(tried)

    if not room.is_short(str(error)):
        raise error
    if not room.explain(holdings):
        raise BackendError(f"{error}; {room.explain_host()}")
    fits = room.fits_by_trial(n_ctx, room.STEP * params.n_seq_max, works)
    holdings.begin_context(n_ctx)
    raise BackendError(f"{error}; {room.explain(holdings, fits)}")


def apply_control_vectors(context: Any, model: Model, options: EngineOptions) -> None:
    """Raises `BackendError` if they don't fit the model."""
    o = options.model
    files = [(path, 1.0) for path in o.control_vector] + [*o.control_vector_scaled]
    if not files:
        return
    n_embd, n_layer = model.n_embd, model.n_layer
    data = control_vector.combine(files, n_embd, n_layer)
    first, last = o.control_vector_layer_range or (1, n_layer)
    pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if C.llama_set_adapter_cvec(context, pointer, data.size, n_embd, first, last) != 0:
        raise failure("cannot apply the control vectors")


def tell_sizes(options: EngineOptions, n_seq: int) -> None:
    """llama.cpp asserts that a batch and a micro-batch have room for a token of each sequence."""
    sizes = options.context
    for option, size in (
        ("--batch-size", sizes.batch_size),
        ("--ubatch-size", min(sizes.ubatch_size, max(sizes.batch_size, n_seq))),
    ):
        if size < n_seq:
            log.warning("%s %d is too small for %d sequences: it is %d", option, size, n_seq, n_seq)
