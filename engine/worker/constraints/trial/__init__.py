"""Tries grammars and schemas in a process with limits, before the engine compiles them."""
