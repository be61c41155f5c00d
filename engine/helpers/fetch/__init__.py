"""Fetching of URLs in requests."""
