"""The built-in tools for files and commands."""
