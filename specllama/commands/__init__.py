"""The subcommands. Each module has a `main`, which gets the arguments after the command's name and
returns the exit code. A module is imported only for its command."""

from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand: its arguments, its sentence in `specllama --help`, and its own subcommands."""

    arguments: str
    summary: str
    actions: tuple[str, ...] = ()  # the words that may come next


COMMANDS = {
    "pull": Command(
        "USER/REPO[:QUANT]",
        "downloads a model from the Hugging Face Hub, a URL, or (--docker) an OCI registry",
    ),
    "list": Command("[--json]", "lists the downloaded models"),
    "rm": Command("NAME...", "removes downloaded models"),
    "ps": Command("[--url URL]", "shows the models and slots of a running server"),
    "deploy": Command(
        "CONFIG [--address HOST:PORT]",
        "serves models on several machines with Ray Serve (extra: ray)",
    ),
    "keys": Command(
        "add|list|revoke [NAME]",
        "adds, lists and removes API keys in the file of --keys-file",
        ("add", "list", "revoke"),
    ),
    "doctor": Command("[--json]", "checks whether specllama can run well on this machine"),
    "spec": Command(
        "[--openapi VERSION] [--format FORMAT] [--tag TAG]...",
        "writes the OpenAPI description of the API",
    ),
}
"""The subcommands by name. Without one, and with `serve`, the program starts the server."""


def run(name: str, arguments: list[str]) -> int:
    """Runs the command `name`, and returns its exit code."""
    result: int = import_module(f"specllama.commands.{name}").main(arguments)
    return result
