"""Notations that other people have fixed: GGUF files and their names, ECMAScript's regular
expressions."""
