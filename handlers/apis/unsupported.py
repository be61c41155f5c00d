"""Documented request fields that this server does not act on yet.

Ignoring such a field would give an answer to another question, so a request that sets one is
refused. The values that still pass mean "off"; they are the `x-supported-values` of the
description, and a test holds the two together. A feature that arrives takes its line out.
"""

import logging
from collections.abc import Mapping
from typing import Any

from specllama.engine.errors import not_supported

# ---- Remarks in the log about fields of a request without an effect.
#
# A request that works with other servers works here: what can't be done and harms nobody if it
# isn't is left out, and whoever runs the server can read so.


log = logging.getLogger("specllama.handlers.apis")
MAX_VALUE = 64  # characters of what a client has sent


def remark(text: str, *values: Any) -> None:
    """One line in the log; `values` are what `%s` and `%d` in `text` stand for."""
    log.warning(text, *map(_short, values))


def _short(value: Any) -> Any:
    """`value` so that it neither breaks the line nor fills the log."""
    if not isinstance(value, str):
        return value
    return repr(value[:MAX_VALUE])[1:-1]


Supported = Mapping[str, list[Any]]
"""Field (a dot leads into an object) -> the values that it may have, beside null."""

INFILL: Supported = {
    "image_data": [[]],
}
CHAT: Supported = {
    **INFILL,
    "modalities": [[], ["text"], ["text", "audio"], ["audio", "text"]],
}
MESSAGES_INPUT: Supported = {
    "thread": [],
}
MESSAGES: Supported = {
    **INFILL,
    **MESSAGES_INPUT,
}

GEMINI: Supported = {
    "cachedContent": [],
}

RESPONSES: Supported = {
    **INFILL,
    "conversation": [],
    "prompt": [],
}


def refuse_unsupported(body: Mapping[str, Any], fields: Supported) -> None:
    """Raises EngineError (not_supported_error) naming the first of `fields` that `body` gives
    a value which this server can't serve."""
    for name, supported in fields.items():
        head, _, tail = name.partition(".")
        value = body.get(head)
        if tail and value is not None:
            value = value.get(tail)
        if value is not None and value not in supported:
            raise not_supported(f"{name}: not supported here; leave it out")
