"""Validation of very large request bodies."""
