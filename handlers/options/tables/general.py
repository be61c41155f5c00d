"""Options that print information instead of starting a server."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options.declaration import Opt

_downloads = partial(Opt, group="Downloads")
_general = partial(Opt, group="General")


class GeneralOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The information to print instead of starting a server."""

    cache_list: Annotated[
        bool,
        _downloads(
            names="-cl --cache-list",
            help="Print the models in the Hub's cache and exit. `specllama list` shows more.",
        ),
    ] = False
    help: Annotated[bool, _general(names="-h --help --usage", help="Print this help and exit.")] = (
        False
    )
    version: Annotated[
        bool,
        _general(
            names="--version", help="Print the versions of the server and of llama.cpp and exit."
        ),
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
            help="Print a completion script for bash and exit. Usage: source <(specllama "
            "--completion-bash).",
        ),
    ] = False
    completion_zsh: Annotated[
        bool,
        _general(
            names="--completion-zsh",
            help="Print a completion script for zsh and exit. Usage: "
            "source <(specllama --completion-zsh).",
        ),
    ] = False
    completion_fish: Annotated[
        bool,
        _general(
            names="--completion-fish",
            help="Print a completion script for fish and exit. Usage: "
            "specllama --completion-fish | source.",
        ),
    ] = False
    list_devices: Annotated[
        bool,
        _general(
            names="--list-devices",
            help="Print the devices that layers can be offloaded to and exit.",
        ),
    ] = False

    def any(self) -> bool:
        """Returns whether the program prints something and exits."""
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
    """Where the server stores the responses of the Responses API."""

    responses_db: Annotated[
        str,
        _responses(
            names="--responses-db",
            env="LLAMA_ARG_RESPONSES_DB",
            metavar="STORE",
            help="Where the responses of /v1/responses are stored: the path of an SQLite file, in "
            "which they are kept until they are deleted, for the servers of one machine, or "
            "redis://HOST:PORT for the servers of several machines. The file is created if it "
            "doesn't exist.",
            default="none (the latest responses are kept in memory)",
        ),
    ] = ""
    responses_key_file: Annotated[
        str,
        _responses(
            names="--responses-key-file",
            env="LLAMA_ARG_RESPONSES_KEY_FILE",
            metavar="FILE",
            help="File with the secret by which the server recognizes reasoning and compacted "
            "conversations that clients keep and send back. Servers with the same secret read each "
            "other's. The file is created with a random secret if it doesn't exist.",
            default="the secret of the store of --responses-db, or one in the user's cache",
        ),
    ] = ""


# ---- Options of quotas and usage.


_usage = partial(Opt, group="Server")


class UsageOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Where the server stores what API keys have used, and what they may still use."""

    usage_db: Annotated[
        str,
        _usage(
            names="--usage-db",
            env="LLAMA_ARG_USAGE_DB",
            metavar="FILE",
            help="SQLite database for the usage of each API key, which GET /v1/usage returns. "
            "Several servers may use one file. The file is created if it doesn't exist.",
            default="none (the usage since the start is in memory)",
        ),
    ] = ""
    quota_store: Annotated[
        str,
        _usage(
            names="--quota-store",
            env="LLAMA_ARG_QUOTA_STORE",
            metavar="STORE",
            help="Where the used parts of quotas are stored: memory, the path of an SQLite file "
            "for the servers of one machine, or redis://HOST:PORT for the servers of several "
            "machines. Requests of keys with quotas are answered with 503 if it can't be used.",
        ),
    ] = "memory"
