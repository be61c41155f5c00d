"""Models of the tests."""

from pathlib import Path

from tools.models.build import ensure


def random_model() -> Path:
    """Returns a chat model with random weights, whose texts vary and don't end soon."""
    return ensure("random")
