"""Errors in the forms of other APIs."""
