"""The HTTP layer that all operations share: bodies, errors, streams, API keys, the request log."""
