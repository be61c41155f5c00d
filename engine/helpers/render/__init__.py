"""Rendering chat templates, and detecting how a model writes by them."""
