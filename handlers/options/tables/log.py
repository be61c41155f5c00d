"""Options of the log."""

import logging
from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options import values
from specllama.engine.options.declaration import INT32_MAX, Opt, Switch

_LEVELS = {0: logging.CRITICAL, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}

_log = partial(Opt, group="Logging")


class LogOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to log, where, and in which format."""

    verbosity: Annotated[
        int,
        _log(
            names="-lv --verbosity --log-verbosity",
            env="LLAMA_LOG_VERBOSITY",
            also_env="LLAMA_ARG_LOG_VERBOSITY",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Log level: 0 fatal errors only, 1 errors, 2 warnings, 3 information, 4 and "
            "above everything.",
            replaces=("verbose",),
        ),
    ] = 3
    verbose: Annotated[
        bool,
        _log(names="-v --verbose --log-verbose", help="Log everything.", replaces=("verbosity",)),
    ] = False
    log_disable: Annotated[
        bool,
        _log(names="--log-disable", help="Log nothing, and print neither banner nor progress."),
    ] = False
    log_file: Annotated[
        str,
        _log(
            names="--log-file",
            env="LLAMA_LOG_FILE",
            also_env="LLAMA_ARG_LOG_FILE",
            metavar="FILE",
            help="Append the log to this file, too. If the file is renamed, for example by "
            "logrotate, the server creates it again.",
            default="none",
        ),
    ] = ""
    log_prompts_dir: Annotated[
        str,
        _log(
            names="--log-prompts-dir",
            metavar="DIR",
            help="Write each prompt to a file in this directory, for debugging. The directory is "
            "created if it doesn't exist. Only the user of the server can read the files, which "
            "the server never deletes; they contain everything that clients send.",
            default="none",
        ),
    ] = ""
    log_format: Annotated[
        Literal["text", "json"],
        _log(
            names="--log-format",
            env="LLAMA_ARG_LOG_FORMAT",
            metavar="FORMAT",
            help="Format of the log: text, or json with one object per line.",
            replaces=("log_jsonl",),
        ),
    ] = "text"
    log_jsonl: Annotated[
        bool,
        _log(
            names="--log-jsonl",
            negative="--no-log-jsonl",
            env="LLAMA_ARG_LOG_JSONL",
            help="The same as --log-format json.",
            replaces=("log_format",),
        ),
    ] = False
    log_colors: Annotated[
        Switch,
        _log(
            names="--log-colors",
            env="LLAMA_LOG_COLORS",
            also_env="LLAMA_ARG_LOG_COLORS",
            metavar="[on|off|auto]",
            help="Colour the log; auto does so on a terminal.",
            bare="on",
            read=values.switch,
        ),
    ] = "auto"
    log_prefix: Annotated[
        bool,
        _log(
            names="--log-prefix",
            negative="--no-log-prefix",
            env="LLAMA_LOG_PREFIX",
            also_env="LLAMA_ARG_LOG_PREFIX",
            help="Prefix log lines with their level and source.",
        ),
    ] = True
    log_timestamps: Annotated[
        bool,
        _log(
            names="--log-timestamps",
            negative="--no-log-timestamps",
            env="LLAMA_LOG_TIMESTAMPS",
            also_env="LLAMA_ARG_LOG_TIMESTAMPS",
            help="Prefix log lines with the time.",
        ),
    ] = False

    def is_json(self) -> bool:
        """Returns whether each log line is a JSON object."""
        return self.log_jsonl or self.log_format == "json"

    def level(self) -> int:
        """Returns the threshold of the server's log, as a level of Python's logging."""
        everything = self.verbose or self.verbosity > max(_LEVELS)
        return logging.DEBUG if everything else _LEVELS[self.verbosity]

    def engine_level(self) -> int:
        """Returns the threshold of an engine's log. llama.cpp's info level is verbose, so it is
        logged only with -v."""
        if self.log_disable:
            return logging.CRITICAL + 1
        if self.level() <= logging.DEBUG:
            return logging.DEBUG
        return logging.WARNING if self.verbosity >= 2 else logging.ERROR
