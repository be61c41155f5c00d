"""Requests for vectors and for scores."""
