"""Grammars and JSON schemas, compiled to masks of tokens."""
