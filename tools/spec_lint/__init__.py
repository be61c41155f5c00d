"""Lints the description with Redocly and Spectral, which come from npm."""
