"""From options to the sources of proposals."""

from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import Model
from specllama.engine.worker.speculation.draft_loading import draft_source
from specllama.engine.worker.speculation.source import Source
from specllama.engine.worker.speculation.text_sources import text_sources


def proposal_sources(model: Model, options: EngineOptions) -> list[Source]:
    """The sources that `options` ask for, the one to be heard first in front: what texts have said
    costs nothing, and a draft model comes last. Raises `BackendError`."""
    sources = text_sources(options.speculation, model.n_vocab)
    draft = draft_source(model, options)
    return sources if draft is None else [*sources, draft]
