"""Chat templates: from messages to the text that a model reads."""
