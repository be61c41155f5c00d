"""From options to the sources of proposals."""

from engine.options import EngineOptions
from engine.worker.backend import Model
from engine.worker.speculation.source import Source


def proposal_sources(model: Model, options: EngineOptions) -> list[Source]:
    """The sources that `options` ask for, the one to be heard first in front."""
    return []
