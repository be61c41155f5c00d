"""Adapts options that were not given to the free memory, before a model is loaded (`--fit`)."""

from specllama.engine.worker.fitting.fitting import fitted

__all__ = ["fitted"]
