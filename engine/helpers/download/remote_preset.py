"""Finds the preset file that a repository of the hub may have, in place of models."""

import logging
from collections.abc import Mapping

from specllama.engine.catalog.cache import cached_models, named
from specllama.engine.catalog.hub_choice import PRESET
from specllama.engine.catalog.locations import hub_cache
from specllama.engine.catalog.presets import RemotePreset
from specllama.engine.helpers.download.downloader import FetchError, fetch_preset
from specllama.engine.helpers.download.hub_layout import RepositoryCache
from specllama.engine.options import OptionError, Options

log = logging.getLogger("specllama.engine.catalog")


async def find_remote_preset(options: Options, environ: Mapping[str, str]) -> RemotePreset | None:
    """The preset file of the repository that `options` name; None if that has none, or if they
    name a file.

    The hub is asked, unless the cache has a model of the repository and no preset file: then it is
    known what the repository is for, and nobody has to wait. Raises OptionError if the hub
    doesn't answer, or has no such repository.
    """
    repository = options.source.hf_repo
    if not repository or options.engine.model.model:
        return None
    name = repository.partition(":")[0]
    cache = hub_cache(environ)
    is_cached = PRESET in RepositoryCache(cache, name).names()
    if not is_cached and named(cached_models(cache), repository) is not None:
        return None
    try:
        path = await fetch_preset(options)
    except FetchError as error:
        raise OptionError(str(error)) from error
    if not path:
        return None
    log.warning("%s is a repository of presets: the models of its %s are served", name, PRESET)
    return RemotePreset(repository=name, path=path)
