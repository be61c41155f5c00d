"""Fetching what requests name by URL."""
