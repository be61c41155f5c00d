"""What bodies may hold: their values, counted while they arrive, and the bytes of all of them
together.

A value costs far more than its text: `[],` is three bytes, and a hundred once it is decoded.
"""

import asyncio
import re

from starlette.types import Scope

from specllama.handlers.http.errors import RequestError

MAX_VALUES = 1 << 20
"""Values and keys in one body."""
MAX_NODES = 1 << 17
"""Objects, arrays and keys in one body: they take some ten times the work of numbers."""
LARGE = 1 << 14
"""Values and keys of a body above which other processes and threads work on it."""
FEW = 1 << 11
"""Values and keys of an invalid body that can be explained in a moment."""
FREE = 1 << 20
"""Bytes of a body that are not counted: small requests always have a place."""
SHARE = 8
"""Bodies of the largest size that the server holds at a time."""
RETRY_AFTER = 5  # s

_BEFORE_VALUES = b",:[{"  # one of these stands before every value and key but the outermost
_BEFORE_NODES = b":[{"  # one of these belongs to every key, array and object
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


def n_values(scope: Scope) -> int:
    """The values and keys of the body of a request that has been read, at the most."""
    n: int = scope["state"].get("n_values", 0)
    return n


class ValueCount:
    """The number of values in a JSON text that comes in parts.

    Punctuation bounds it from above. What is inside of strings is told apart only once there is
    too much of it to be small, a part at a time, so that others have their turn.
    """

    def __init__(
        self, most: int = MAX_VALUES, most_nodes: int = MAX_NODES, large: int = LARGE
    ) -> None:
        self._most = most
        self._most_nodes = most_nodes
        self._trusted = min(most, most_nodes, large)
        self._parts: list[bytes] | None = []  # None: they are looked through as they come
        self._n_nodes = 0
        self._open = b""  # a string that goes on in the next part
        self.n = 0  # at the most

    async def add(self, part: bytes) -> None:
        """Raises RequestError for too many values."""
        if self._parts is None:
            self._look_through(part)
        else:
            self._parts.append(part)
            self.n += _count(part, _BEFORE_VALUES)
            if self.n < self._trusted:
                return
            parts, self._parts, self.n = self._parts, None, 0
            for each in parts:
                self._look_through(each)
                await asyncio.sleep(0)
        if self.n >= self._most:
            raise RequestError(413, f"the body has more than {self._most} values and keys")
        if self._n_nodes >= self._most_nodes:
            raise RequestError(
                413, f"the body has more than {self._most_nodes} objects, arrays and keys"
            )

    def _look_through(self, part: bytes) -> None:
        pieces = _STRING.split(self._open + part)  # what is outside, and the quotes that close
        is_open = len(pieces) > 1 and not pieces[-2]
        self._open = b'"' + pieces[-1] if is_open else b""  # a backslash goes with what it escapes
        outside = b"".join(pieces)
        self.n += _count(outside, _BEFORE_VALUES)
        self._n_nodes += _count(outside, _BEFORE_NODES)


def _count(text: bytes, marks: bytes) -> int:
    return len(text) - len(text.translate(None, marks))
