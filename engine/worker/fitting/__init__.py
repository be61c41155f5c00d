"""Fits options that were not given to the memory that is free, before a model is loaded."""

from specllama.engine.worker.fitting.fitting import fitted

__all__ = ["fitted"]
