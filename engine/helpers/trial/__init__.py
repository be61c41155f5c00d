"""Compiling grammars for a trial."""
