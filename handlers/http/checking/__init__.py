"""Checks of large bodies: the parent runs in the server process, the child in its own."""
