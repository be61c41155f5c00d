"""Remarks in the log on what a request asks for in vain.

A request that works with other servers works here: what can't be done and harms nobody if it isn't
is left out, and whoever runs the server can read so.
"""

import logging
from typing import Any

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
