"""The models of a server: which ones are loaded, their engine processes, and their requests."""
