"""Which tokens of which sequences the next step evaluates. Pure Python over plain data."""
