"""Chooses the tokens that the next step evaluates. Pure Python over plain data."""
