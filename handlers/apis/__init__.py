"""Reads requests of each API, and formats its answers: one folder per API."""
