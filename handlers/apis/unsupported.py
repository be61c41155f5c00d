"""Documented request fields that this server does not act on yet.

Ignoring such a field would give an answer to another question, so a request that sets one is
refused. The values that still pass mean "off"; they are the `x-supported-values` of the
description, and a test holds the two together. A feature that arrives takes its line out.
"""

from collections.abc import Mapping
from typing import Any

from specllama.engine.errors import not_supported

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
