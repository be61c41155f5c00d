"""The libraries of the page at `/`, which come from npm."""
