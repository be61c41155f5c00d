"""Downloading models from hubs, registries and URLs."""
