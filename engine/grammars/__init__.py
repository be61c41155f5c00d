"""Grammars and JSON schemas, translated for llguidance: pure functions."""
