"""Loads the draft model."""

import logging
from functools import partial

from specllama.engine.options import EngineOptions, replaced
from specllama.engine.options.tables.rope import RopeOptions
from specllama.engine.worker.backend import BackendError, Context, Model, holdings, warm_up
from specllama.engine.worker.speculation.draft_model import DraftModel
from specllama.engine.worker.speculation.source import AnySource
from specllama.engine.worker.speculation.vocabularies import TokenTranslation, difference

log = logging.getLogger("specllama.engine.worker.speculation.draft_model")


def draft_source(model: Model, options: EngineOptions) -> AnySource | None:
    """The proposal source of the draft model in `options`, for `model`; None without one. Raises
    `BackendError` if it can't be loaded or doesn't fit `model`."""
    path = options.draft.model_draft
    if not path:
        return None
    of_draft = draft_options(options)
    with holdings.drafting():
        try:
            draft = Model(path, of_draft)
        except BackendError as error:
            raise BackendError(f"draft model: {error}") from error
        try:
            return _source(model, draft, options, of_draft)
        except BackendError:
            draft.close()
            raise


def _source(
    model: Model, draft: Model, options: EngineOptions, of_draft: EngineOptions
) -> AnySource:
    path, replacements = options.draft.model_draft, options.draft.spec_replace
    if draft.has_encoder or not draft.has_decoder:
        raise BackendError(f"{path!r} can't be a draft model: it is not a pure decoder")
    if _embeds(draft):
        raise BackendError(f"{path!r} can't be a draft model: it is an embedding model")
    unlike = difference(model, draft)
    if unlike and not replacements:
        raise BackendError(
            f"{path!r} can't be the draft model of this model: its vocabulary differs "
            f"({unlike}); --spec-replace translates the texts"
        )
    unified = options.unified_kv_cache()
    try:
        context = Context(draft, of_draft, options.context.n_slots(), unified)
        if options.model.warmup:
            warm_up(context)
    except BackendError as error:
        raise BackendError(f"draft model {path!r}: {error}") from error
    # Beyond its trained context, a model without RoPE has no positions, and others guess.
    limit = context.n_ctx_seq
    if options.rope == RopeOptions():
        limit = min(limit, draft.n_ctx_train)
    log.info(
        "draft model %s: %s, %.1f MiB; it drafts for texts of up to %d tokens",
        path,
        draft.description,
        draft.size / (1 << 20),
        limit,
    )
    new = partial(DraftModel, context, unified=unified, limit=limit)
    if not unlike:
        return new(n_vocab=model.n_vocab)
    log.warning("the draft model has another vocabulary (%s): texts are translated", unlike)
    return TokenTranslation(new(n_vocab=draft.n_vocab), model, draft, replacements)


def _embeds(model: Model) -> bool:
    """True if this is an embedding model, which predicts no tokens."""
    metadata = model.metadata
    arch = metadata.get("general.architecture", "")
    return metadata.get(f"{arch}.attention.causal") == "false" or f"{arch}.pooling_type" in metadata


def draft_options(options: EngineOptions) -> EngineOptions:
    """The options of the draft model: its own ones where set, else the target model's, except for
    adapters and the placement of tensors."""
    draft, compute = options.draft, options.compute
    threads = draft.threads_draft if draft.threads_draft > 0 else compute.threads
    as_drafting = threads if draft.threads_draft > 0 else compute.threads_batch
    has_cpus = bool(draft.cpu_mask_draft or draft.cpu_range_draft)
    return replaced(
        options,
        model=draft.model_draft,
        lora=(),
        control_vector=(),
        control_vector_scaled=(),
        ctx_size=draft.ctx_size_draft or options.context_size(),
        cache_type_k=draft.cache_type_k_draft,
        cache_type_v=draft.cache_type_v_draft,
        swa_full=True,  # a sliding window couldn't be taken back
        reproducible="off",
        device=draft.device_draft or compute.device,
        split_mode="layer" if len(draft.device_draft) == 1 else compute.split_mode,
        n_gpu_layers=draft.n_gpu_layers_draft,
        override_tensor=draft.override_tensor_draft,
        cpu_moe=draft.cpu_moe_draft,
        n_cpu_moe=draft.n_cpu_moe_draft,
        n_cpu_ffn=0,
        threads=threads,
        threads_batch=draft.threads_batch_draft if draft.threads_batch_draft > 0 else as_drafting,
        cpu_mask=draft.cpu_mask_draft if has_cpus else compute.cpu_mask,
        cpu_range=draft.cpu_range_draft if has_cpus else compute.cpu_range,
        cpu_mask_batch=draft.cpu_mask_batch_draft or (() if has_cpus else compute.cpu_mask_batch),
        cpu_range_batch=() if has_cpus or draft.cpu_mask_batch_draft else compute.cpu_range_batch,
        cpu_strict=_first(draft.cpu_strict_draft, compute.cpu_strict),
        prio=_first(draft.prio_draft, compute.prio),
        poll=_first(draft.poll_draft, compute.poll),
        cpu_strict_batch=_first(
            draft.cpu_strict_batch_draft, draft.cpu_strict_draft, compute.cpu_strict_batch
        ),
        prio_batch=_first(draft.prio_batch_draft, draft.prio_draft, compute.prio_batch),
        poll_batch=_first(draft.poll_batch_draft, draft.poll_draft, compute.poll_batch),
        backend_sampling=False,
        embedding=False,
        reranking=False,
        pooling="",
        model_draft="",
    )


def _first(*numbers: int) -> int:
    """The first number that isn't -1."""
    return next((number for number in numbers if number >= 0), numbers[-1])
