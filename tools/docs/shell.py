"""Finds the commands that shell examples run."""

import re
import shlex
from collections.abc import Iterator

from specllama.commands import COMMANDS

ENDING = frozenset(
    {*COMMANDS, "--help", "--version", "--list-devices", "--cache-list"}
    | {"--completion-bash", "--completion-zsh", "--completion-fish"}
)
"""Commands and options with which the program ends by itself."""

_COMMAND = re.compile(r"^specllama(?=\s)(?:.*\\\n)*.*\n?", re.MULTILINE)


def starts(text: str) -> Iterator[tuple[str, list[str] | None]]:
    """Yields the commands of an example: text for bash, or the options of a server."""
    end = 0
    for command in _COMMAND.finditer(text):
        _, *options = shlex.split(command[0].replace("\\\n", " "), comments=True)
        if not ENDING.intersection(options):
            yield text[end : command.start()], None
            yield "", options
            end = command.end()
    yield text[end:], None
