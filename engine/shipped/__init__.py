"""The model that ships with the package."""

from pathlib import Path

MODEL_NAME = "specllama-tiny"


def model_path() -> Path:
    """Returns the path of the shipped GGUF file, which is next to this module in all
    installations."""
    return Path(__file__).with_name(f"{MODEL_NAME}.gguf")


def model_file(model: str) -> str:
    """Returns the file for a value of `--model`: the shipped one for "" and for its name, unless a
    file with that name exists; other values are returned unchanged."""
    if not model or (model == MODEL_NAME and not Path(model).exists()):
        return str(model_path())
    return model
