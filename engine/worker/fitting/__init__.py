"""Adapts options that were not given to the free memory, before a model is loaded (`--fit`), and
measures the memory that a model will take."""

from specllama.engine.worker.fitting.fitting import fitted
from specllama.engine.worker.fitting.planned import measured

__all__ = ["fitted", "measured"]
