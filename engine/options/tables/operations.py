"""Options of the operations that a model is offered with."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import INT32_MAX, Opt

_operation = partial(Opt, group="Server")


class OperationOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What may be asked of a model."""

    slots: Annotated[
        bool,
        _operation(
            names="--slots",
            negative="--no-slots",
            env="LLAMA_ARG_ENDPOINT_SLOTS",
            help="Offer GET /slots.",
        ),
    ] = True
    slots_text: Annotated[
        bool,
        _operation(
            names="--slots-text",
            env="LLAMA_SERVER_SLOTS_DEBUG",
            help="Let GET /slots show prompts, generated texts and what else comes from clients.",
        ),
    ] = False
    props: Annotated[
        bool,
        _operation(
            names="--props",
            env="LLAMA_ARG_ENDPOINT_PROPS",
            help="Allow POST /props.",
        ),
    ] = False
    metrics: Annotated[
        bool,
        _operation(
            names="--metrics",
            env="LLAMA_ARG_ENDPOINT_METRICS",
            help="Offer GET /metrics, for Prometheus.",
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
            help="Silence after which a stream sends a comment, so that nobody takes the "
            "connection for dead (-1 and 0: never).",
        ),
    ] = 30


# ---- The option of the files that slots are saved to.


_slot_files = partial(Opt, group="Server")


class SlotFileOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Where slots are saved, and restored from."""

    slot_save_path: Annotated[
        str,
        _slot_files(
            names="--slot-save-path",
            metavar="DIR",
            help="Directory of the files that POST /slots/{id_slot} saves and restores.",
            default="none (the operation is switched off)",
            file=files.check_directory,
        ),
    ] = ""
