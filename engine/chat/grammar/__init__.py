"""Grammars for answers with tool calls. This package runs in the server process."""
