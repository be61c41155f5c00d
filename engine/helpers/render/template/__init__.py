"""Renders a conversation to a prompt. This package runs in the template processes."""
