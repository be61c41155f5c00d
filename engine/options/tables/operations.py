"""Options that enable or disable operations of the API for a model."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import FIRST_PRIORITY, INT32_MAX, LAST_PRIORITY, Opt

_operation = partial(Opt, group="Server")


class OperationOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Which operations a model offers."""

    slots: Annotated[
        bool,
        _operation(
            names="--slots",
            negative="--no-slots",
            env="LLAMA_ARG_ENDPOINT_SLOTS",
            help="Enable GET /slots.",
        ),
    ] = True
    slots_text: Annotated[
        bool,
        _operation(
            names="--slots-text",
            env="LLAMA_SERVER_SLOTS_DEBUG",
            help="Include prompts, generated texts and other content from clients in GET /slots.",
        ),
    ] = False
    props: Annotated[
        bool,
        _operation(
            names="--props",
            env="LLAMA_ARG_ENDPOINT_PROPS",
            help="Enable POST /props.",
        ),
    ] = False
    metrics: Annotated[
        bool,
        _operation(
            names="--metrics",
            env="LLAMA_ARG_ENDPOINT_METRICS",
            help="Enable GET /metrics, for Prometheus.",
        ),
    ] = False
    sse_ping_interval: Annotated[
        int,
        _operation(
            names="--sse-ping-interval",
            env="LLAMA_ARG_SSE_PING_INTERVAL",
            metavar="SECONDS",
            min=-1,
            max=INT32_MAX,
            help="Time without events after which a stream sends a comment, so that proxies and "
            "clients keep the connection open (-1 or 0: never).",
        ),
    ] = 30
    default_priority: Annotated[
        int,
        _operation(
            names="--default-priority",
            metavar="N",
            min=FIRST_PRIORITY,
            max=LAST_PRIORITY,
            help="Priority of requests for which neither the request nor its API key sets one. Of "
            "the waiting requests, those with lower numbers are served first.",
        ),
    ] = 0


# ---- The directory of saved slots.


_slot_files = partial(Opt, group="Server")


class SlotFileOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The directory of saved slots."""

    slot_save_path: Annotated[
        str,
        _slot_files(
            names="--slot-save-path",
            metavar="DIR",
            help="Directory of the files that POST /slots/{id_slot} saves and restores.",
            default="none (saving and restoring is disabled)",
            file=files.check_directory,
        ),
    ] = ""
