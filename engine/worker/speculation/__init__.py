"""Speculative decoding: more than one token of a sequence in a step, with the same output."""
