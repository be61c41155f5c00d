"""Makes the proposal sources of the options."""

from specllama.engine.options import EngineOptions
from specllama.engine.options.tables.speculation import SpeculationOptions
from specllama.engine.worker.backend import Model
from specllama.engine.worker.speculation.draft_loading import draft_source
from specllama.engine.worker.speculation.known_texts import Radix
from specllama.engine.worker.speculation.ngram.cache import NgramCache
from specllama.engine.worker.speculation.ngram.lookup import (
    LookupFile,
    NgramMapK,
    NgramMapK4V,
    NgramSimple,
)
from specllama.engine.worker.speculation.ngram.mod import NgramMod
from specllama.engine.worker.speculation.source import AnySource

# ---- The sources that propose continuations from known texts.


def text_sources(options: SpeculationOptions, n_vocab: int) -> list[AnySource]:
    """The sources of `--spec-type`, the most accurate one first. Raises BackendError for a file
    that can't be used."""
    wanted = options.types()
    sources: list[AnySource] = []
    if "radix" in wanted:
        sources.append(Radix())
    if "ngram-simple" in wanted:
        sources.append(
            NgramSimple(
                options.spec_ngram_simple_size_n,
                options.spec_ngram_simple_size_m,
                options.spec_ngram_simple_min_hits,
            )
        )
    if "ngram-map-k" in wanted:
        sources.append(
            NgramMapK(
                options.spec_ngram_map_k_size_n,
                options.spec_ngram_map_k_size_m,
                options.spec_ngram_map_k_min_hits,
            )
        )
    if "ngram-map-k4v" in wanted:
        sources.append(
            NgramMapK4V(
                options.spec_ngram_map_k4v_size_n,
                options.spec_ngram_map_k4v_size_m,
                options.spec_ngram_map_k4v_min_hits,
            )
        )
    if "ngram-mod" in wanted:
        sources.append(
            NgramMod(
                options.spec_ngram_mod_n_match,
                options.spec_ngram_mod_n_max,
                options.spec_ngram_mod_n_min,
            )
        )
    if "ngram-cache" in wanted:
        sources.append(
            NgramCache(
                _lookup_file(options.lookup_cache_static, n_vocab),
                _lookup_file(options.lookup_cache_dynamic, n_vocab),
            )
        )
    return sources


def _lookup_file(path: str, n_vocab: int) -> LookupFile | None:
    return LookupFile(path, n_vocab) if path else None


def proposal_sources(model: Model, options: EngineOptions) -> list[AnySource]:
    """The sources of `options` in the order of their use: known texts, which cost almost nothing,
    then the draft model. Raises `BackendError`."""
    sources = text_sources(options.speculation, model.n_vocab)
    draft = draft_source(model, options)
    return sources if draft is None else [*sources, draft]
