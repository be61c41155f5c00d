"""The places of media in texts, and what follows from them for chunks.

A medium takes a span of tokens. They are evaluated from embeddings, which a decode can't mix with
tokens, so a chunk is tokens or a part of one span. A span may go into the KV cache piece by piece,
but it is never kept, shared or gone back to in the middle: another text has all of it, or nothing.
"""

from bisect import bisect, bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

_START = itemgetter(0)


class Span(NamedTuple):
    """Tokens `start` up to `stop` of a text are a part of a medium. `is_whole`: they attend to each
    other, and are evaluated at once."""

    start: int
    stop: int
    is_whole: bool


def around(spans: Sequence[Span], at: int) -> Span | None:
    """The one of `spans`, which are in order, that has the token `at`."""
    if not spans:
        return None
    last = bisect(spans, at, key=_START) - 1
    return spans[last] if last >= 0 and at < spans[last].stop else None


def uncut(spans: Sequence[Span], n: int) -> int:
    """The most of a text's first `n` tokens that cut no span."""
    span = around(spans, n)
    return n if span is None else span.start


def next_stop(spans: Sequence[Span], at: int) -> int | None:
    """Where a chunk that begins with the token `at` ends at the latest: with its span, or in front
    of the next one. None: with the text."""
    if not spans:
        return None
    if (span := around(spans, at)) is not None:
        return span.stop
    following = bisect(spans, at, key=_START)
    return spans[following].start if following < len(spans) else None


def next_start(spans: Sequence[Span], at: int) -> int | None:
    """The start of the first span that begins with the token `at` or behind it."""
    following = bisect_left(spans, at, key=_START)
    return spans[following].start if following < len(spans) else None
