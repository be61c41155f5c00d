"""Reads the metadata of model files, in a child of the server process: a file may be hostile."""
