"""Proposal sources that search a text for earlier occurrences of its last tokens. Their names are
llama-server's."""
