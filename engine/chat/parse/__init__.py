"""Parses the text of an answer into content, reasoning and calls. This package runs in the server
process."""
