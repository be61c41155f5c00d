"""Requests for text: from prompts to sampled tokens and their text."""
