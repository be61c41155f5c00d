"""The HTTP layer that all operations share: binding, validation, errors, streams."""
