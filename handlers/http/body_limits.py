"""What bodies may hold: their values, counted while they arrive, and the bytes of all of them
together.

A value costs far more than its text: `[],` is three bytes, and a hundred once it is decoded.
"""

import asyncio
import re

from handlers.http.errors import RequestError

MAX_VALUES = 1 << 20
"""Values and keys in one body."""
FREE = 1 << 20
"""Bytes of a body that are not counted: small requests always have a place."""
SHARE = 8
"""Bodies of the largest size that the server holds at a time."""
RETRY_AFTER = 5  # s

_BEFORE_VALUES = b",:[{"  # one of these stands before every value and key but the outermost
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)  # to its end, or that of the text


class Budget:
    """The bytes of the bodies that are held at a time."""

    def __init__(self) -> None:
        self._held = 0

    def take(self, n_bytes: int, most: int) -> None:
        """Raises RequestError if more than `most` were held with `n_bytes` more."""
        if self._held + n_bytes > most:
            raise RequestError(
                503,
                f"the bodies of other requests fill the {most} bytes that there are for them",
                {"Retry-After": str(RETRY_AFTER)},
            )
        self._held += n_bytes

    def give(self, n_bytes: int) -> None:
        self._held -= n_bytes


class ValueCount:
    """The number of values in a JSON text that comes in parts.

    Punctuation bounds it from above. What is inside of strings is told apart only once there is
    too much of it, a part at a time, so that others have their turn.
    """

    def __init__(self, most: int = MAX_VALUES) -> None:
        self._most = most
        self._parts: list[bytes] | None = []  # None: they are looked through as they come
        self._n = 0
        self._open = b""  # a string that goes on in the next part

    async def add(self, part: bytes) -> None:
        """Raises RequestError for too many values."""
        if self._parts is None:
            self._n += self._outside_of_strings(part)
        else:
            self._parts.append(part)
            self._n += _punctuation(part)
            if self._n < self._most:
                return
            parts, self._parts, self._n = self._parts, None, 0
            for each in parts:
                self._n += self._outside_of_strings(each)
                await asyncio.sleep(0)
        if self._n >= self._most:
            raise RequestError(413, f"the body has more than {self._most} values and keys")

    def _outside_of_strings(self, part: bytes) -> int:
        pieces = _STRING.split(self._open + part)  # what is outside, and the quotes that close
        is_open = len(pieces) > 1 and not pieces[-2]
        self._open = b'"' + pieces[-1] if is_open else b""  # a backslash goes with what it escapes
        return _punctuation(b"".join(pieces))


def _punctuation(text: bytes) -> int:
    return len(text) - len(text.translate(None, _BEFORE_VALUES))
