"""Decides which files of a model have to be found or downloaded before it can be loaded."""

from specllama.engine.options import Options


def wants_fetch(options: Options) -> bool:
    """True if `fetch` has to be called before the model of `options` can be loaded."""
    return wants_model(options) or wants_projector(options) or options.fetches_draft()


def wants_model(options: Options) -> bool:
    return not options.engine.model.model and options.names_model()


def wants_projector(options: Options) -> bool:
    return not options.engine.media.mmproj and bool(options.source.mmproj_url)
