"""Rendering of chat templates, and detection of the syntax of a model's answers."""
