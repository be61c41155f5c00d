"""Options of one model among many."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import values
from specllama.engine.options.declaration import Opt

_models = partial(Opt, group="Many models")


class EntryOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How long a model stays in memory, and what people read about it."""

    sleep_idle_seconds: Annotated[
        int,
        _models(
            names="--sleep-idle-seconds",
            metavar="SECONDS",
            help="Give a model's memory back after so long without requests, until the next one.",
            read=values.idle_seconds,
            default="-1 (never)",
        ),
    ] = -1
    tags: Annotated[
        tuple[str, ...],
        _models(
            names="--tags",
            env="LLAMA_ARG_TAGS",
            metavar="TAG,...",
            help="Words that the API shows beside the model, for people.",
            default="none",
            repeats=True,
            read=values.comma_separated,
            show=values.show_comma_separated,
        ),
    ] = ()
