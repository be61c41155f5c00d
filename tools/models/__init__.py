"""Builds the shipped model and the models for tests and benchmarks. Not in the wheel."""
