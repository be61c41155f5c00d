"""Chat templates, and the syntax of a model's answers: prompts, grammars, parsers."""
