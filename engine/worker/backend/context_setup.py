"""Makes a context, from the options to llama.cpp's parameters."""

import ctypes
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions, Pooling
from specllama.engine.worker.backend import room
from specllama.engine.worker.backend.ggml import ThreadPool
from specllama.engine.worker.backend.library import failure, forget_errors, holdings
from specllama.engine.worker.backend.model import Model, ModelFacts

log = logging.getLogger("specllama.engine.context")

_KV_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the bindings do not name
    "q8_0": C.GGML_TYPE_Q8_0,
    "q4_0": C.GGML_TYPE_Q4_0,
    "q4_1": C.GGML_TYPE_Q4_1,
    "iq4_nl": C.GGML_TYPE_IQ4_NL,
    "q5_0": C.GGML_TYPE_Q5_0,
    "q5_1": C.GGML_TYPE_Q5_1,
}
_ROPE_SCALING = {
    "": C.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": C.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": C.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": C.LLAMA_ROPE_SCALING_TYPE_YARN,
}
POOLING: dict[Pooling | Literal[""], int] = {
    "": C.LLAMA_POOLING_TYPE_UNSPECIFIED,
    "none": C.LLAMA_POOLING_TYPE_NONE,
    "mean": C.LLAMA_POOLING_TYPE_MEAN,
    "cls": C.LLAMA_POOLING_TYPE_CLS,
    "last": C.LLAMA_POOLING_TYPE_LAST,
    "rank": C.LLAMA_POOLING_TYPE_RANK,
}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
CACHED_SEQUENCES = 16
"""Sequence ids in addition to the slots': the number of finished texts that can stay as cache."""
SHORT_INPUT = 8  # tokens; determines the number of sequences of a full batch
STATEFUL_SEQUENCES = 4  # for models whose sequences cost memory


def sequence_ids(model: ModelFacts, options: EngineOptions) -> int:
    """The number of sequences of a KV cache: the number of slots. A unified cache has up to
    `CACHED_SEQUENCES` more, unless its memory has a separate part for each sequence (recurrent
    states, sliding windows)."""
    n_slots = options.context.n_slots()
    if not options.unified_kv_cache() or model.is_recurrent or model.moving_window(options):
        return n_slots
    # llama.cpp asserts that a micro-batch has room for a token of each sequence.
    most = min(MAX_SEQUENCES, options.context.batch_size, options.context.ubatch_size)
    return max(n_slots, min(n_slots + CACHED_SEQUENCES, most))


def sequence_count(model: ModelFacts, options: EngineOptions) -> int:
    """The number of sequences of an embedding context: the most inputs in one batch."""
    if options.context.parallel > 0:
        return options.context.parallel
    if model.has_state:
        return STATEFUL_SEQUENCES
    n_batch = min(options.context.ubatch_size, options.context.batch_size)
    return max(1, min(MAX_SEQUENCES, n_batch // SHORT_INPUT))


def context_params(model: ModelFacts, options: EngineOptions, n_seq: int, unified: bool) -> Any:
    """The parameters of a context of `model` for `n_seq` sequences.

    With a moving sliding window, a batch is a single micro-batch. With several, llama.cpp first
    reserves the cells of all micro-batches, and for a later one drops cells of the sequence
    (`llama_kv_cache::prepare`) that an earlier one still needs."""
    params = C.llama_context_default_params()
    n_ctx = options.context_size()
    # llama.cpp cuts the batch to the context, and only then enlarges the context (to 256 at least).
    params.n_ctx = max(n_ctx, n_seq) if n_ctx else 0
    sizes = options.context
    params.n_batch = max(sizes.batch_size, n_seq)
    micro_batch = min(sizes.ubatch_size, params.n_batch)
    params.n_ubatch = max(micro_batch, n_seq)
    if model.moving_window(options):
        params.n_batch = params.n_ubatch
    params.n_seq_max = n_seq
    params.n_threads, params.n_threads_batch = threads(options)
    rope = options.rope
    params.rope_scaling_type = _ROPE_SCALING[rope.rope_scaling]
    params.rope_freq_base = rope.rope_freq_base
    params.rope_freq_scale = 1 / rope.rope_scale if rope.rope_scale else rope.rope_freq_scale
    params.yarn_orig_ctx = rope.yarn_orig_ctx
    params.yarn_ext_factor = rope.yarn_ext_factor
    params.yarn_attn_factor = rope.yarn_attn_factor
    params.yarn_beta_slow = rope.yarn_beta_slow
    params.yarn_beta_fast = rope.yarn_beta_fast
    params.flash_attn_type = FLASH_ATTENTION[options.compute.flash_attn]
    params.type_k, params.type_v = (_KV_TYPES[name] for name in options.cache_types())
    params.offload_kqv = options.compute.kv_offload
    params.op_offload = options.compute.op_offload
    params.swa_full = options.context.swa_full
    params.kv_unified = unified
    params.no_perf = not options.compute.perf
    if options.sampling.backend_sampling and not options.embedding.embeds():
        # The device reserves memory for this many outputs, each as large as the vocabulary.
        params.n_outputs_max, params.n_outputs_max_per_seq = n_seq, 1
    if options.embedding.embeds():
        _set_pooling(params, options)
    return params


def _set_pooling(params: Any, options: EngineOptions) -> None:
    params.embeddings = True
    embedding = options.embedding
    params.pooling_type = POOLING["rank" if embedding.reranking else embedding.pooling]
    # llama.cpp asserts that the number of sequences divides the micro-batch, or the context if that
    # is smaller (a multiple of 256).
    params.n_seq_max = 1 << (params.n_seq_max - 1).bit_length()
    params.n_ubatch = -(-params.n_ubatch // params.n_seq_max) * params.n_seq_max
    # Pooling, and attention without a causal mask, work within one micro-batch.
    params.n_batch = params.n_ubatch


# ---- Control vectors: directions that are added to the outputs of layers, read from GGUF files.
#
# A file has a tensor `direction.N` of n_embd F32 numbers for each layer N >= 1 that it steers (Zou
# et al., "Representation Engineering", arXiv:2310.01405).


Direction = npt.NDArray[np.float32]

_PREFIX = "direction."


def combine(
    files: Iterable[tuple[str, float]], n_embd: int, n_layer: int
) -> npt.NDArray[np.float32]:
    """The sum of the scaled vectors in `files`, (n_layer - 1, n_embd) from layer 1 on; layers
    beyond the model's are ignored.

    Raises `BackendError` for a file that isn't a control vector, or is for another model.
    """
    total = np.zeros((max(0, n_layer - 1), n_embd), np.float32)
    for path, scale in files:
        for layer, direction in _read(path).items():
            if len(direction) != n_embd:
                raise BackendError(
                    f"the control vector {path!r} has {len(direction)} numbers for a layer, "
                    f"the model {n_embd}"
                )
            if layer < n_layer:
                total[layer - 1] += np.float32(scale) * direction
    return total


def _read(path: str) -> dict[int, Direction]:
    """The directions in a file, by layer."""
    from gguf import GGMLQuantizationType, GGUFReader  # slow to import, rarely needed

    try:
        tensors = GGUFReader(Path(path)).tensors
    except Exception as error:  # a damaged file can cause any exception in the reader
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BackendError(f"cannot read the control vector {path!r}: {reason}") from None
    directions: dict[int, Direction] = {}
    for tensor in tensors:
        number = tensor.name.removeprefix(_PREFIX)
        if not tensor.name.startswith(_PREFIX) or not number.isdecimal() or not int(number):
            raise BackendError(f"{path!r} isn't a control vector: it has a tensor {tensor.name!r}")
        values = np.asarray(tensor.data)
        if tensor.tensor_type != GGMLQuantizationType.F32 or values.ndim != 1:
            raise BackendError(
                f"{path!r} isn't a control vector: {tensor.name!r} isn't a row of F32"
            )
        if not np.isfinite(values).all():
            raise BackendError(f"the control vector {path!r} has infinite numbers")
        directions[int(number)] = values.astype(np.float32)
    if not directions:
        raise BackendError(f"{path!r} isn't a control vector: it has no tensor")
    return directions


# ---- The number of threads that compute, and their CPUs.


def physical_cores() -> int:
    """The number of usable physical cores, the best number of threads: a second hardware thread per
    core adds no speed."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if usable is None:
        return max(1, (os.cpu_count() or 1) // 2)
    siblings = set()
    for cpu in usable:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings"
        try:
            with open(path, encoding="ascii") as file:
                siblings.add(file.read().strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def threads(options: EngineOptions) -> tuple[int, int]:
    """The numbers of threads for generating and for evaluating batches."""
    n = options.compute.threads
    if n <= 0:
        n = physical_cores()
        if cpus := options.compute.cpus():
            n = min(n, len(cpus))
    return n, options.compute.threads_batch if options.compute.threads_batch > 0 else n


def has_cores_for(options: EngineOptions, *, times: int) -> bool:
    """True if `times` thread pools can compute at once on the CPU, each on its own cores."""
    n_most = max(threads(options))
    n_usable = len(options.compute.cpus()) or physical_cores()
    return not C.llama_supports_gpu_offload() and times * n_most <= n_usable


def thread_pools(options: EngineOptions) -> list[ThreadPool]:
    """The thread pools for generating and for batches; empty if llama.cpp's own threads are
    sufficient."""
    if not options.compute.places_threads():
        return []
    n_threads, n_threads_batch = threads(options)
    o = options.compute
    batch_priority = o.prio if o.prio_batch < 0 else o.prio_batch
    return [
        ThreadPool(n_threads, o.cpus(), strict=o.cpu_strict == 1, priority=o.prio, poll=o.poll),
        ThreadPool(
            n_threads_batch,
            o.cpus_batch(),
            strict=(o.cpu_strict if o.cpu_strict_batch < 0 else o.cpu_strict_batch) == 1,
            priority=batch_priority,
            poll=o.poll if o.poll_batch < 0 else o.poll_batch,
        ),
    ]


# ---- Creating a context.


def created(model: Model, params: Any) -> Any:
    """llama.cpp's context. Raises `BackendError`; if there is no memory, its message has a context
    size that would fit."""
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
    """Applies the control vectors of `options`. Raises `BackendError` if they don't fit the
    model."""
    o = options.model
    files = [(path, 1.0) for path in o.control_vector] + [*o.control_vector_scaled]
    if not files:
        return
    n_embd, n_layer = model.n_embd, model.n_layer
    data = combine(files, n_embd, n_layer)
    first, last = o.control_vector_layer_range or (1, n_layer)
    pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if C.llama_set_adapter_cvec(context, pointer, data.size, n_embd, first, last) != 0:
        raise failure("cannot apply the control vectors")


def warn_of_small_batches(options: EngineOptions, n_seq: int) -> None:
    """Warns of batch sizes that are raised: llama.cpp asserts that a batch and a micro-batch have
    room for a token of each sequence."""
    sizes = options.context
    for option, size in (
        ("--batch-size", sizes.batch_size),
        ("--ubatch-size", min(sizes.ubatch_size, max(sizes.batch_size, n_seq))),
    ):
        if size < n_seq:
            log.warning(
                "%s %d is too small for %d sequences: %d is used", option, size, n_seq, n_seq
            )
