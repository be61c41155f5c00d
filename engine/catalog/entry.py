"""A model of the catalog, and its files that are missing."""

from typing import Literal

import msgspec

from specllama.engine.options import Options

Source = Literal["shipped", "cache", "models_dir", "preset", "command_line"]


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the catalog and all that its engine is started with.

    Their `model` is the path of its file, the first of several; "" with a `hf_repo`, a `model_url`
    or a `docker_repo` is a model that has to be downloaded first, and "" alone is the shipped one.
    `in_cache` is true if its file belongs to the hub's cache. A `hidden` one can be named, and is
    not listed: a preset has the same file, or it is the shipped one beside others. A `removable`
    one is a download without a preset, whose files really lie in the cache. One with a `fault`
    can't be loaded: its preset can't be used, for this reason.
    """

    name: str
    source: Source
    options: Options
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    load_on_startup: bool = False
    stop_timeout: int = 10  # s that running requests get when the model is unloaded
    in_cache: bool = False
    hidden: bool = False
    removable: bool = False
    fault: str = ""


# ---- Files that are missing before a model can be loaded.


def wants_fetch(options: Options) -> bool:
    """True if `fetch` has to be called before the model of `options` can be loaded."""
    return wants_model(options) or wants_projector(options) or options.fetches_draft()


def wants_model(options: Options) -> bool:
    return not options.engine.model.model and options.names_model()


def wants_projector(options: Options) -> bool:
    return not options.engine.media.mmproj and bool(options.source.mmproj_url)
