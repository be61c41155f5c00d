"""Options that print information instead of starting the server, and those of the Responses API."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options.declaration import Opt

_downloads = partial(Opt, group="Downloads")
_general = partial(Opt, group="General")


class GeneralOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to print instead of serving."""

    cache_list: Annotated[
        bool,
        _downloads(
            names="-cl --cache-list",
            help="Print the models in the hub's cache and exit; `specllama list` shows more.",
        ),
    ] = False
    help: Annotated[
        bool, _general(names="-h --help --usage", help="Print this overview and exit.")
    ] = False
    version: Annotated[
        bool, _general(names="--version", help="Print the versions of server and engine and exit.")
    ] = False
    license: Annotated[
        bool,
        _general(
            names="--license", help="Print the licenses of the program and its parts and exit."
        ),
    ] = False
    completion_bash: Annotated[
        bool,
        _general(
            names="--completion-bash",
            help="Print a script that completes commands and options in bash and exit: "
            "source <(specllama --completion-bash).",
        ),
    ] = False
    completion_zsh: Annotated[
        bool,
        _general(
            names="--completion-zsh",
            help="The same for zsh: source <(specllama --completion-zsh).",
        ),
    ] = False
    completion_fish: Annotated[
        bool,
        _general(
            names="--completion-fish",
            help="The same for fish: specllama --completion-fish | source.",
        ),
    ] = False
    list_devices: Annotated[
        bool,
        _general(names="--list-devices", help="Print the devices that can hold layers and exit."),
    ] = False

    def any(self) -> bool:
        """Whether the program is to print something and exit."""
        return (
            self.help
            or self.version
            or self.license
            or self.completion_bash
            or self.completion_zsh
            or self.completion_fish
            or self.list_devices
            or self.cache_list
        )


# ---- Options of the Responses API.


_responses = partial(Opt, group="Server")


class ResponsesOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Where responses are stored for later requests."""

    responses_db: Annotated[
        str,
        _responses(
            names="--responses-db",
            env="LLAMA_ARG_RESPONSES_DB",
            metavar="FILE",
            help="SQLite database for the responses of /v1/responses, which stay until they are "
            "deleted; created if it doesn't exist.",
            default="none (the last responses are kept in memory)",
        ),
    ] = ""
