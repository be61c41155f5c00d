"""Compares the description with that of the last release, to find changes that break clients."""
