"""`Options`: every option of the server as one struct."""

import functools
import json

from engine.options import files, values
from engine.options.tables.compute import THREAD_PLACEMENT, ComputeOptions
from engine.options.tables.model import AUTO_SLOTS, CacheType
from engine.options.tables.serving import ServingOptions
from engine.params import RANDOM_SEED, SAMPLER_LETTERS, GenerationParams
from engine.shipped import model_file, model_path

SHIPPED_CONTEXT = 8192
"""Tokens that the shipped model was trained with."""

_read_once = functools.cache(files.read_text)


class Options(ServingOptions, kw_only=True, frozen=True):
    """What the server was started with. Comes from `parse`, which also checks the values.

    Names, short forms, variables and defaults of the options are llama-server's; their
    fields are declared in `engine.options.tables`. To add an option, add a field there.
    """

    def n_slots(self) -> int:
        """How many slots to make."""
        return AUTO_SLOTS if self.parallel < 0 else self.parallel

    def unified_kv_cache(self) -> bool:
        """Whether all slots share one KV cache."""
        if self.kv_unified is not None:
            return self.kv_unified
        return self.parallel < 0 and not self.is_reproducible()

    def is_shipped(self) -> bool:
        """Whether the model is the one that ships with the package."""
        if self.hf_repo or self.model_url:
            return False
        return model_file(self.model) == str(model_path())

    def is_reproducible(self) -> bool:
        """Whether texts are to depend on their requests alone. What that takes is decided here,
        and what is given explicitly wins over it: `irreproducible`.

        llama.cpp's Flash Attention on the CPU adds up one cell after the other, in the order of
        the cells, and passes over those of other texts, whoever else is in the batch; unless keys
        and values both are f16 (or f32, which it makes f16), where it chooses between three ways
        of adding by the number of tokens in the batch and of cells. So their types have to differ.
        With a KV cache for each slot the order of the cells is that of the tokens; in a unified one
        a text that goes on uses what others have left free.
        """
        if self.reproducible == "auto":
            return self.is_shipped() and not self.embeds()
        return self.reproducible == "on" and not self.embeds()

    def irreproducible(self) -> list[str]:
        """The given options that make texts depend on more than their requests."""
        found = []
        if self.unified_kv_cache():
            found.append("--kv-unified")
        if self.flash_attn == "off":
            found.append("--flash-attn off")
        if {*self.cache_types()} <= {"f16", "f32"}:
            found.append("--cache-type-k {} --cache-type-v {}".format(*self.cache_types()))
        if self.cache_reuse:
            found.append("--cache-reuse")
        return found

    def cache_types(self) -> tuple[CacheType, CacheType]:
        """The data types of the keys and of the values in the KV cache."""
        return (
            self.cache_type_k or "f16",
            self.cache_type_v or ("bf16" if self.is_reproducible() else "f16"),
        )

    def context_size(self) -> int:
        """How many cells all slots have together; 0: as many as the model was trained with.

        The shipped model is so small that each of its slots can have those.
        """
        if self.ctx_size or self.unified_kv_cache() or self.parallel >= 0:
            return self.ctx_size
        return self.n_slots() * SHIPPED_CONTEXT if self.is_shipped() and not self.embeds() else 0

    def embeds(self) -> bool:
        """Whether the server embeds or reranks, and does not generate."""
        return self.embedding or self.reranking

    def logs_everything(self) -> bool:
        """Whether somebody asked for all details, llama.cpp's own included."""
        return self.verbose or self.verbosity >= 4

    def aliases(self) -> list[str]:
        """The names of `--alias`, without repetition, in alphabetical order: the first is
        the model's id."""
        return sorted({name.strip() for name in self.alias.split(",") if name.strip()})

    def cpus(self) -> list[int]:
        """The CPUs of --cpu-mask and --cpu-range; empty if any may be used."""
        return sorted({*self.cpu_mask, *self.cpu_range})

    def cpus_batch(self) -> list[int]:
        """The same for batches."""
        return sorted({*self.cpu_mask_batch, *self.cpu_range_batch}) or self.cpus()

    def places_threads(self) -> bool:
        """Whether anything is said of CPU threads but their number."""
        own = ComputeOptions()
        return any(getattr(self, name) != getattr(own, name) for name in THREAD_PLACEMENT)

    def hosts(self) -> list[str]:
        """The addresses and socket paths to listen on; never empty."""
        return list(dict.fromkeys(values.comma_separated(self.host)))

    def api_keys(self) -> list[str]:
        """The keys of `--api-key` and `--api-key-file`; empty if everybody may come in.

        Raises `OptionError` if the file can't be read or holds no key.
        """
        keys = list(self.api_key)
        if self.api_key_file:
            keys += files.api_keys(self.api_key_file)
        return list(dict.fromkeys(keys))

    def _schema(self) -> str | None:
        schema = self.json_schema
        if self.json_schema_file:
            schema = values.json_object(_read_once(self.json_schema_file))
        return None if schema is None else json.dumps(schema, ensure_ascii=False)

    def unescaped(self, text: str) -> str:
        """`text` as it is meant: with its escape sequences resolved, unless `--no-escape` is
        in force. Raises `OptionError` if that gives a null character."""
        return values.unescape(text) if self.escape else text

    def generation_defaults(self) -> GenerationParams:
        """The parameters of a request that sets none itself."""
        return GenerationParams(
            n_predict=self.n_predict,
            n_keep=self.keep,
            ignore_eos=self.ignore_eos,
            cache_prompt=self.cache_prompt,
            n_cache_reuse=self.cache_reuse,
            seed=RANDOM_SEED if self.seed < 0 else self.seed,
            samplers=[SAMPLER_LETTERS[c] for c in self.sampler_seq] or list(self.samplers),
            temperature=max(self.temp, 0.0),
            dynatemp_range=self.dynatemp_range,
            dynatemp_exponent=self.dynatemp_exp,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical,
            top_n_sigma=self.top_nsigma,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            repeat_last_n=self.repeat_last_n,
            repeat_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            dry_penalty_last_n=self.dry_penalty_last_n,
            dry_sequence_breakers=[self.unescaped(text) for text in self.dry_sequence_breaker],
            mirostat=self.mirostat,
            mirostat_tau=self.mirostat_ent,
            mirostat_eta=self.mirostat_lr,
            adaptive_target=self.adaptive_target,
            adaptive_decay=self.adaptive_decay,
            stop=[self.unescaped(text) for text in self.reverse_prompt],
            logit_bias=[(token, bias) for token, bias in self.logit_bias],
            grammar=_read_once(self.grammar_file) if self.grammar_file else self.grammar,
            json_schema=self._schema(),
            backend_sampling=self.backend_sampling,
        )
