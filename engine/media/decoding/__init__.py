"""Decodes images and sounds, in a child of the server process: their bytes may be hostile."""
