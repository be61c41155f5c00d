"""Fetches what requests name by URL, in a child of the server process."""
