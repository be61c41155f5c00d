"""Checks beyond the value of a single option: files that options name, and options that exclude or
need each other."""

import re
from collections.abc import Callable
from functools import partial

import msgspec

from specllama.engine.options.composition import Options
from specllama.engine.options.declaration import fields
from specllama.engine.options.names import suggestion
from specllama.engine.options.tables.chat import BUILTIN_NAMES
from specllama.engine.options.values import OptionError, quote

_FLOAT_CACHE_TYPES = ("f32", "f16", "bf16")


def check(options: Options) -> None:
    """Raises `OptionError` for options of a model that contradict each other."""
    engine = options.engine
    sampling = engine.sampling
    if options.source.hf_file and not options.source.hf_repo:
        raise OptionError("--hf-file names a file of a repository, so it needs --hf-repo")
    if engine.model.direct_io and engine.model.mlock:
        raise OptionError("--mlock excludes --direct-io, which bypasses the page cache")
    for text in sampling.reverse_prompt:
        named("--reverse-prompt", partial(sampling.unescaped, text))
    for text in sampling.dry_sequence_breaker:
        named("--dry-sequence-breaker", partial(sampling.unescaped, text))
    pooling = engine.embedding.pooling
    if engine.embedding.reranking and pooling not in ("", "rank"):
        raise OptionError(f"--reranking means --pooling rank, not {pooling}")
    cache_type_k, cache_type_v = engine.cache_types()
    if cache_type_k == "bf16" and engine.shifts_cache():
        name = "--context-shift" if engine.context.context_shift else "--cache-reuse"
        raise OptionError(f"{name}: llama.cpp can't move keys of --cache-type-k bf16")
    if engine.compute.flash_attn == "off" and cache_type_v not in _FLOAT_CACHE_TYPES:
        raise OptionError(
            f"--cache-type-v {cache_type_v} needs Flash Attention, which --flash-attn off forbids"
        )
    of_draft = engine.draft.cache_type_v_draft
    if engine.compute.flash_attn == "off" and of_draft not in _FLOAT_CACHE_TYPES:
        raise OptionError(
            f"--cache-type-v-draft {of_draft} needs Flash Attention, which --flash-attn off forbids"
        )
    _check_media(options)
    _check_template(options.chat.chat_template)
    has_draft = bool(engine.draft.model_draft or options.source.hf_repo_draft)
    engine.speculation.synthetic_rates(has_draft=has_draft)


def _check_template(text: str) -> None:
    """Raises `OptionError` for a single unknown word: as a template, it would be the prompt of
    every conversation."""
    if re.fullmatch(r"[\w.-]+", text) and text not in BUILTIN_NAMES:
        near = suggestion(text, BUILTIN_NAMES)
        raise OptionError(
            f"--chat-template: {quote(text)} is neither a Jinja template nor one of llama.cpp's "
            f"built-in formats{near}"
        )


def _check_media(options: Options) -> None:
    fewest, most = options.engine.media.image_min_tokens, options.engine.media.image_max_tokens
    if 0 < most < fewest:
        raise OptionError(f"--image-min-tokens {fewest} is more than --image-max-tokens {most}")
    if not options.media.media_urls:
        for name in ("media_domains", "media_private_addresses"):
            field = fields(Options)[name]
            if field.of(options):
                raise OptionError(f"{field.canonical} has no effect without --media-urls")


def check_files(options: msgspec.Struct) -> None:
    """Raises `OptionError` for files that can't be used, before the engine needs them."""
    declared = fields(type(options))
    for field in declared.values():
        if field.name == "model_draft" and declared["hf_repo_draft"].of(options):
            continue  # the name of a file in the repository
        if field.opt.file is not None and (value := field.of(options)):
            named(field.canonical, partial(field.opt.file, value))


def named(name: str, action: Callable[[], object]) -> None:
    """Calls `action`, and prefixes an `OptionError` that it raises with the option's name."""
    try:
        action()
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
