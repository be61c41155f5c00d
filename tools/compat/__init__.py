"""The description beside that of the last release: what would break a client."""
