"""The subcommands: each module has a `main` that takes the arguments behind the command's name, and
returns the exit code. A module is imported when its command is given."""

from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand: the arguments as an overview shows them, and one sentence."""

    arguments: str
    summary: str


COMMANDS = {
    "pull": Command(
        "USER/REPO[:QUANT]",
        "downloads a model of the Hugging Face Hub, or (--docker) of a registry",
    ),
    "list": Command("[--json]", "lists the models that were downloaded"),
    "rm": Command("NAME...", "removes downloaded models"),
    "ps": Command("[--url URL]", "shows the models and slots of a running server"),
    "doctor": Command("[--json]", "tells whether this machine and this installation will do"),
    "spec": Command(
        "[--openapi VERSION] [--format FORMAT] [--tag TAG]...",
        "writes the OpenAPI description of the API",
    ),
}
"""By name. Without one, or behind `serve`, the program serves."""


def run(name: str, arguments: list[str]) -> int:
    """Runs the command `name`; its exit code."""
    result: int = import_module(f"specllama.commands.{name}").main(arguments)
    return result
