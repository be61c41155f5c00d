"""How a context is made, in llama.cpp's terms."""

from typing import Any, Literal

from llama_cpp import llama_cpp as C

from specllama.engine.options import EngineOptions, Pooling
from specllama.engine.worker.backend.threads import threads

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


def context_params(options: EngineOptions, n_seq: int, unified: bool) -> Any:
    """The parameters of a context for `n_seq` sequences."""
    params = C.llama_context_default_params()
    n_ctx = options.context_size()
    # llama.cpp cuts the batch to the context, and only then makes that larger (256 at least).
    params.n_ctx = max(n_ctx, n_seq) if n_ctx else 0
    sizes = options.context
    params.n_batch = max(sizes.batch_size, n_seq)
    micro_batch = min(sizes.ubatch_size, params.n_batch)
    params.n_ubatch = max(micro_batch, n_seq)
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
        # The device has room for this many, each as large as the vocabulary.
        params.n_outputs_max, params.n_outputs_max_per_seq = n_seq, 1
    if options.embedding.embeds():
        _set_pooling(params, options)
    return params


def _set_pooling(params: Any, options: EngineOptions) -> None:
    params.embeddings = True
    embedding = options.embedding
    params.pooling_type = POOLING["rank" if embedding.reranking else embedding.pooling]
    # llama.cpp asserts that the micro-batch, or the context if that is smaller (a multiple of
    # 256), can be divided by the number of sequences.
    params.n_seq_max = 1 << (params.n_seq_max - 1).bit_length()
    params.n_ubatch = -(-params.n_ubatch // params.n_seq_max) * params.n_seq_max
    # Pooling looks at one micro-batch, and attention without a causal mask does so as well.
    params.n_batch = params.n_ubatch
