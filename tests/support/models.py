"""Models of the tests."""

from pathlib import Path

from tools.models.build import ensure


def random_model() -> Path:
    """A chat model of random weights: its texts are varied, and don't end soon."""
    return ensure("random")
