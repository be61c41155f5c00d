"""Checking request bodies with very many values."""
