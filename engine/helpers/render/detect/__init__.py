"""Detects the output syntax of a model from its chat template. This package runs in the template
processes."""
