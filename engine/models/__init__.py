"""The models of a server: which are loaded, by which processes, and their requests."""
