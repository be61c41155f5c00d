"""The model that ships with the package, and the script that builds it and its siblings."""

from pathlib import Path

MODEL_NAME = "specllama-tiny"


def model_path() -> Path:
    """The shipped GGUF file. It lies beside this module in every kind of installation."""
    return Path(__file__).with_name(f"{MODEL_NAME}.gguf")


def model_file(model: str) -> str:
    """The file that `--model` means: the shipped one for "" and for its name, unless there is a
    file of that name, and anything else as it is."""
    if not model or (model == MODEL_NAME and not Path(model).exists()):
        return str(model_path())
    return model
