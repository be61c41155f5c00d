"""Grammars for answers with tool calls. Runs in the server process."""
