"""The priority and the time limits that a request chooses, in its body and in its headers.

Values out of range are clamped, as other numbers are (`handlers.apis.parameters`).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.engine.options.declaration import FIRST_PRIORITY, LAST_PRIORITY
from specllama.handlers.apis.parameters import INT32_MAX, clamp
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.terms import NO_WISHES, Wishes

RANGES: Mapping[str, tuple[float, float]] = {
    "priority": (FIRST_PRIORITY, LAST_PRIORITY),
    "timeout_ms": (-1, INT32_MAX),
    "t_max_prompt_ms": (-1, INT32_MAX),
}
"""The ranges of the fields, by their native names, in the order of `Wishes`. A test compares them
with `x-clamped` in the description."""
_HEADERS = {
    b"x-request-priority": "priority",
    b"x-request-timeout-ms": "timeout_ms",
    b"x-request-prompt-timeout-ms": "t_max_prompt_ms",
}


def wishes_in(body: Mapping[str, Any]) -> Wishes:
    """Returns what the fields of `body` choose, which have their native names."""
    if not RANGES.keys() & body.keys():
        return NO_WISHES
    return _wishes({name: value for name in RANGES if (value := body.get(name)) is not None})


def wishes_in_headers(headers: Iterable[tuple[bytes, bytes]]) -> Wishes:
    """Returns what the headers of a request choose. A value that is no number is ignored; of two
    headers with the same name, the first counts."""
    found: dict[str, float] = {}
    for name, value in headers:
        if name in _HEADERS and _HEADERS[name] not in found:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if math.isnan(number):
                warn_ignored("%s: this is no number", name.decode("ascii"))
            else:
                found[_HEADERS[name]] = number
    return _wishes(found) if found else NO_WISHES


def with_headers(wishes: Wishes) -> Wishes:
    """Returns `wishes`, completed by the headers of the current request."""
    return wishes.or_else(wishes_in_headers(current_scope()["headers"]))


def _wishes(given: Mapping[str, float]) -> Wishes:
    return Wishes(*(_whole(name, given[name]) if name in given else None for name in RANGES))


def _whole(name: str, value: float) -> int:
    low, high = RANGES[name]
    if not low <= value <= high:
        warn_ignored("%s: %s is out of range; the nearest value applies", name, value)
    return int(clamp(value, (low, high)))
