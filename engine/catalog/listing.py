"""The output of --cache-list."""

from collections.abc import Mapping

from specllama.engine.catalog.cache import cached_models
from specllama.engine.catalog.locations import hub_cache


def cache_list(environ: Mapping[str, str]) -> list[str]:
    """The lines, as llama-server prints them: how many models the hub's cache holds, then one for
    each."""
    models = cached_models(hub_cache(environ))
    return [
        f"number of models in cache: {len(models)}",
        *(f"{i:4}. {m.name}" for i, m in enumerate(models, 1)),
    ]
