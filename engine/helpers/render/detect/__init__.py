"""Detects the output syntax of a model from its chat template. Runs in the template processes."""
