"""Measurements of whole servers, side by side."""
