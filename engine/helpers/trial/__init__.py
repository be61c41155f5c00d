"""Trial compilation of grammars."""
