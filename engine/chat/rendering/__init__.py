"""Template processes: the parent runs in the server process, the child in its own."""
