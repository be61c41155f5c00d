"""Chooses the tokens of each sequence that the next step evaluates. Pure Python over plain data."""
