"""Translates grammars and JSON schemas for llguidance. Pure functions."""
