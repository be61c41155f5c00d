"""The forms that other APIs give to errors."""
