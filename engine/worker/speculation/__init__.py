"""Proposals: more than one token of a sequence in a step, without changing a word."""
