"""What a preset file of a repository on the hub may say. A stranger writes it: it chooses models of
the hub and how they run, and reaches nothing else on this machine or in its network.

What isn't here names files and folders (`model`, `lora`, `chat-template-file`, ...), addresses
(`rpc`, `model-url`, ...), the token, or operations for clients (`props`, ...), or it is up to the
machine: its processors, its disk, and how memory is taken.
"""

from typing import Final

_MODEL: Final = "alias hf_repo hf_file mmproj_auto tags sleep_idle_seconds warmup"
_DRAFT: Final = """
    hf_repo_draft ctx_size_draft cache_type_k_draft cache_type_v_draft n_gpu_layers_draft
    cpu_moe_draft n_cpu_moe_draft threads_draft threads_batch_draft spec_replace
    spec_draft_backend_sampling
"""
_CONTEXT: Final = """
    ctx_size parallel batch_size ubatch_size cont_batching kv_unified reproducible defrag_thold
    cache_type_k cache_type_v swa_full ctx_checkpoints cache_prompt cache_reuse cache_ram
    context_shift spm_infill slot_prompt_similarity
"""
_MEDIA: Final = "mmproj_offload image_min_tokens image_max_tokens"
_DEVICES: Final = """
    threads threads_batch n_gpu_layers split_mode tensor_split main_gpu cpu_moe n_cpu_moe n_cpu_ffn
    fit fit_target fit_ctx flash_attn kv_offload op_offload mmap
"""
_ROPE: Final = """
    rope_scaling rope_scale rope_freq_base rope_freq_scale
    yarn_orig_ctx yarn_ext_factor yarn_attn_factor yarn_beta_slow yarn_beta_fast
"""
_SAMPLING: Final = """
    n_predict keep seed samplers sampler_seq ignore_eos logit_bias temp dynatemp_range dynatemp_exp
    top_k top_p min_p typical top_nsigma xtc_probability xtc_threshold
    repeat_last_n repeat_penalty presence_penalty frequency_penalty
    dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breaker
    mirostat mirostat_lr mirostat_ent adaptive_target adaptive_decay
    grammar json_schema json_whitespace jump_forward backend_sampling reverse_prompt special escape
"""
_EMBEDDING: Final = "embedding reranking pooling embd_normalize"
_CHAT: Final = """
    jinja chat_template chat_template_kwargs reasoning_format reasoning_budget reasoning
    reasoning_effort reasoning_preserve skip_chat_parsing prefill_assistant
"""

ALLOWED: Final = frozenset(
    " ".join(
        (_MODEL, _DRAFT, _CONTEXT, _MEDIA, _DEVICES, _ROPE, _SAMPLING, _EMBEDDING, _CHAT)
    ).split()
)
"""Options by their fields' names."""
