"""A model of the catalog, and the files that it has to download."""

from typing import Literal

import msgspec

from specllama.engine.options import Options

Source = Literal["shipped", "cache", "models_dir", "preset", "command_line"]


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the catalog, with the options of its engine.

    `options.engine.model.model` is the path of its (first) file. If it is "", the model has to be
    downloaded if there is a `hf_repo`, a `model_url` or a `docker_repo`; else it is the shipped
    one. `in_cache` is true if its file belongs to the Hub's cache. A `hidden` model can be
    requested by name, but isn't listed: a preset has the same file, or it is the shipped model and
    there are others. A `removable` one is a download without a preset, whose files are in the
    cache. A model with a `fault` can't be loaded: the fault is the reason why its preset is
    invalid.
    """

    name: str
    source: Source
    options: Options
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    load_on_startup: bool = False
    pin: bool = False  # stays in memory once it is loaded
    stop_timeout: int = 10  # s for running requests when the model is unloaded
    in_cache: bool = False
    hidden: bool = False
    removable: bool = False
    fault: str = ""


# ---- Files to download before a model can be loaded.


def wants_fetch(options: Options) -> bool:
    """Returns whether `fetch` has to be called before the model of `options` can be loaded."""
    return wants_model(options) or wants_projector(options) or options.fetches_draft()


def wants_model(options: Options) -> bool:
    return not options.engine.model.model and options.names_model()


def wants_projector(options: Options) -> bool:
    return not options.engine.media.mmproj and bool(options.source.mmproj_url)
