"""Options of the Responses API."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options.declaration import Opt

_responses = partial(Opt, group="Server")


class ResponsesOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Where responses are kept that clients may come back to."""

    responses_db: Annotated[
        str,
        _responses(
            names="--responses-db",
            env="LLAMA_ARG_RESPONSES_DB",
            metavar="FILE",
            help="SQLite database that keeps the responses of /v1/responses until they are "
            "deleted; made if it isn't there.",
            default="none (the last ones are kept in memory)",
        ),
    ] = ""
