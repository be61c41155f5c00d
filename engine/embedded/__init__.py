"""The model that ships with the package, and the script that builds it and its siblings."""

from pathlib import Path

MODEL_NAME = "specllama-tiny"


def model_path() -> Path:
    """The shipped GGUF file. It lies beside this module in every kind of installation."""
    return Path(__file__).with_name(f"{MODEL_NAME}.gguf")
