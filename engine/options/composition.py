"""The options of one model, composed of their tables."""

import functools
import json
import os
from collections.abc import Mapping

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import INT32_MAX
from specllama.engine.options.model_values import MODEL_VALUES, metadata_params, option_params
from specllama.engine.options.tables.chat import ChatOptions
from specllama.engine.options.tables.compute import ComputeOptions
from specllama.engine.options.tables.context import CacheType, ContextOptions
from specllama.engine.options.tables.draft_model import DraftModelOptions
from specllama.engine.options.tables.embedding import EmbeddingOptions
from specllama.engine.options.tables.model import ModelOptions
from specllama.engine.options.tables.multimodal import MediaInputOptions, MediaOptions
from specllama.engine.options.tables.operations import OperationOptions, SlotFileOptions
from specllama.engine.options.tables.rope import RopeOptions
from specllama.engine.options.tables.sampling import SamplingOptions
from specllama.engine.options.tables.source import EntryOptions, SourceOptions
from specllama.engine.options.tables.speculation import DRAFT, SpeculationOptions
from specllama.engine.options.text_values import json_object
from specllama.engine.params import RANDOM_SEED, GenerationParams, Speculative
from specllama.engine.shipped import model_file, model_path

SHIPPED_CONTEXT = 8192
"""Tokens that the shipped model was trained with."""

_read_once = functools.cache(files.read_text)


class EngineOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The options that the engine process receives (`engine.wire.requests.Load`). They contain no
    API keys, access tokens or addresses. The files that they name are on this machine."""

    model: ModelOptions = ModelOptions()
    context: ContextOptions = ContextOptions()
    compute: ComputeOptions = ComputeOptions()
    rope: RopeOptions = RopeOptions()
    sampling: SamplingOptions = SamplingOptions()
    embedding: EmbeddingOptions = EmbeddingOptions()
    draft: DraftModelOptions = DraftModelOptions()
    slot_files: SlotFileOptions = SlotFileOptions()
    media: MediaOptions = MediaOptions()
    speculation: SpeculationOptions = SpeculationOptions()

    def unified_kv_cache(self) -> bool:
        """Returns whether all slots share one KV cache."""
        if self.context.kv_unified is not None:
            return self.context.kv_unified
        return self.context.parallel < 0 and not self.is_reproducible()

    def is_shipped(self) -> bool:
        """Returns whether the model is the one that ships with the package. The result is
        meaningless for a model that is still to be downloaded."""
        return os.path.realpath(model_file(self.model.model)) == os.path.realpath(model_path())

    def is_reproducible(self) -> bool:
        """Returns whether texts must depend on their requests alone. `cache_types` and
        `unified_kv_cache` choose the values that this needs. Explicit options override them, see
        `irreproducible`.

        llama.cpp's Flash Attention on the CPU adds up one cell after the other, in the order of the
        cells, and skips the cells of other texts, so the rest of the batch doesn't matter. There is
        one exception: if keys and values are both f16 (or f32, which it converts to f16), it
        chooses between three ways of adding by the numbers of tokens in the batch and of cells. So
        keys and values must not both be f16 or f32. With a KV cache for each slot, the order of the
        cells is that of the tokens. In a unified cache, a text continues in the cells that other
        texts have left free.
        """
        if self.context.reproducible == "auto":
            return self.is_shipped() and not self.embedding.embeds()
        return self.context.reproducible == "on" and not self.embedding.embeds()

    def irreproducible(self) -> list[str]:
        """Returns the given options that make texts depend on more than their requests."""
        found = []
        if self.unified_kv_cache():
            found.append("--kv-unified")
        if self.compute.flash_attn == "off":
            found.append("--flash-attn off")
        if {*self.cache_types()} <= {"f16", "f32"}:
            found.append("--cache-type-k {} --cache-type-v {}".format(*self.cache_types()))
        if self.context.cache_reuse:
            found.append("--cache-reuse")
        return found

    def cache_types(self) -> tuple[CacheType, CacheType]:
        """Returns the data types of the keys and of the values in the KV cache.

        For reproducible texts the keys are bf16, not the values, which are slower to add up. If
        keys have to be shifted, which llama.cpp can't do with bf16, the values are bf16 instead.
        """
        k, v = self.context.cache_type_k, self.context.cache_type_v
        if self.is_reproducible():
            k = k or ("f16" if self.shifts_cache() else "bf16")
            v = v or ("bf16" if k in ("f16", "f32") else "f16")
        return (k or "f16", v or "f16")

    def shifts_cache(self) -> bool:
        """Returns whether an option moves texts within the KV cache."""
        return self.context.context_shift or self.context.cache_reuse > 0

    def context_size(self) -> int:
        """Returns the number of cells that all slots have together; 0 stands for the size that the
        model was trained with.

        The shipped model is small enough to give that size to each of its slots.
        """
        if self.context.is_sized_by_slot():
            return min(self.context.n_slots() * self.context.kv_unified_per_slot, INT32_MAX)
        given = max(self.context.ctx_size, 0)
        if given or self.unified_kv_cache() or self.context.parallel >= 0:
            return given
        if self.is_shipped() and not self.embedding.embeds():
            return self.context.n_slots() * SHIPPED_CONTEXT
        return 0

    def _schema(self) -> str | None:
        schema = self.sampling.json_schema
        if self.sampling.json_schema_file:
            schema = json_object(_read_once(self.sampling.json_schema_file))
        return None if schema is None else json.dumps(schema, ensure_ascii=False)

    def generation_defaults(self, metadata: Mapping[str, str] | None = None) -> GenerationParams:
        """Returns the parameters of a request that sets none, for a model with these `metadata`.
        Without `metadata`, the parameters that the model may set are in `unset`.

        Each source overrides those below it:

        | source | where |
        |---|---|
        | a field of the request | `handlers.apis.parameters.generation_params` |
        | an option: command line, environment, section of a preset | `SamplingOptions` |
        | `general.sampling.*` in the model's file | `engine.options.model_values` |
        | the default | `GenerationParams` |
        """
        sampling, context = self.sampling, self.context
        chosen = option_params(sampling)
        if metadata is None:
            chosen["unset"] = [
                each.param for each in MODEL_VALUES.values() if each.param not in chosen
            ]
        else:
            chosen = metadata_params(metadata) | chosen
        return GenerationParams(
            **chosen,
            n_predict=sampling.n_predict,
            n_keep=sampling.keep,
            ignore_eos=sampling.ignore_eos,
            cache_prompt=context.cache_prompt,
            n_cache_reuse=context.cache_reuse,
            seed=RANDOM_SEED if sampling.seed < 0 else sampling.seed,
            dynatemp_range=sampling.dynatemp_range,
            dynatemp_exponent=sampling.dynatemp_exp,
            typical_p=sampling.typical,
            top_n_sigma=sampling.top_nsigma,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            dry_multiplier=sampling.dry_multiplier,
            dry_base=sampling.dry_base,
            dry_allowed_length=sampling.dry_allowed_length,
            dry_penalty_last_n=sampling.dry_penalty_last_n,
            dry_sequence_breakers=[
                sampling.unescaped(text) for text in sampling.dry_sequence_breaker
            ],
            adaptive_target=sampling.adaptive_target,
            adaptive_decay=sampling.adaptive_decay,
            stop=[sampling.unescaped(text) for text in sampling.reverse_prompt],
            logit_bias=[(token, bias) for token, bias in sampling.logit_bias],
            grammar=_read_once(sampling.grammar_file)
            if sampling.grammar_file
            else sampling.grammar,
            json_schema=self._schema(),
            backend_sampling=sampling.backend_sampling,
            json_whitespace=sampling.json_whitespace,
            jump_forward=sampling.jump_forward,
            speculative=self.speculative(),
        )

    def speculative(self) -> Speculative:
        """Returns the speculation of a request that doesn't set it."""
        options = self.speculation
        has_draft = self.draft.model_draft != ""
        types = options.sources(has_draft=has_draft)
        if not types:
            return Speculative()
        return Speculative(
            types=",".join(types),
            n_max=options.n_max(has_draft=has_draft),
            p_min=options.spec_draft_p_min if DRAFT in types else 0.0,
        )


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """The options of one model, which a section of a preset file may contain. Names, short forms,
    variables and defaults are those of llama-server."""

    engine: EngineOptions = EngineOptions()
    source: SourceOptions = SourceOptions()
    media: MediaInputOptions = MediaInputOptions()
    entry: EntryOptions = EntryOptions()
    operations: OperationOptions = OperationOptions()
    chat: ChatOptions = ChatOptions()

    def names_model(self) -> bool:
        """Returns whether the options name a model: a file, a repository, or an address."""
        return bool(self.engine.model.model) or self.source.names_model()

    def fetches_draft(self) -> bool:
        """Returns whether the draft model is a file of a repository and not located yet. In this
        case `model_draft` is no path on this machine, but the file's name, or empty."""
        return bool(self.source.hf_repo_draft) and not os.path.isabs(self.engine.draft.model_draft)
