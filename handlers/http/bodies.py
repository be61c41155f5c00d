"""Request bodies on their way: their budgets, and the codings that they come in."""

import asyncio
import re
import zlib
from collections.abc import Iterator

from starlette.types import Message, Receive, Scope

from specllama.handlers.http.errors import RequestError

# ---- What bodies may hold: their values, counted while they arrive, and the bytes of all of them
# together.
#
# A value costs far more than its text: `[],` is three bytes, and a hundred once it is decoded.


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


class BodyBudget:
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
    """The values and keys of the body of a request that has been read, at most."""
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
        self.n = 0  # at most

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


# ---- Bodies of requests that are compressed (RFC 9110, 8.4): gzip and deflate.


CODINGS = ("gzip", "deflate")
ACCEPTED = ", ".join(CODINGS)
PIECE = 1 << 20
"""Bytes of a body that are inflated at a time: others have their turn in between."""
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


def coding_of(field: bytes) -> str:
    """The coding that a Content-Encoding names; "" if it is none. Raises RequestError for one that
    isn't served."""
    name = field.decode("latin-1").strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return ""
    if name in CODINGS:
        return name
    raise RequestError(
        415,
        f"Content-Encoding: {name[:50]} is not served; {ACCEPTED} are",
        {"Accept-Encoding": ACCEPTED},
    )


class Inflated:
    """The messages of a request whose body has the coding, with what it means: at most `PIECE`
    bytes in each. A body of more than `limit` compressed bytes is refused, since it need not mean
    anything."""

    def __init__(self, receive: Receive, coding: str, limit: int) -> None:
        self._receive = receive
        self._coding = coding
        self._limit = limit
        self._size = 0
        self._pieces: Iterator[bytes] = iter(())
        self._inflater: zlib._Decompress | None = None
        self._more = True
        self._complete = False

    async def receive(self) -> Message:
        """The next message. Raises RequestError for what isn't of the coding."""
        while not self._complete:
            if (piece := self._next()) is not None:
                await asyncio.sleep(0)
                return _message(piece, more=True)
            if not self._more:
                if self._inflater is not None and not self._inflater.eof:
                    raise self._wrong("it is incomplete")
                self._complete = True
                return _message(b"", more=False)
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._more = message.get("more_body", False)
            part = message.get("body", b"")
            self._size += len(part)
            if self._size > self._limit:
                raise RequestError(413, f"the body is larger than {self._limit} bytes")
            self._pieces = self._inflate(part)
        return await self._receive()

    def _next(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except zlib.error as error:
            raise self._wrong(str(error).rpartition(": ")[2]) from None

    def _inflate(self, part: bytes) -> Iterator[bytes]:
        while part:
            inflater = self._inflater
            if inflater is None or inflater.eof:
                if inflater is not None and self._coding != "gzip":
                    raise self._wrong("something follows its end")
                inflater = self._inflater = zlib.decompressobj(self._bits(part))
            full = True
            while full and not inflater.eof:
                piece = inflater.decompress(part, PIECE)
                part, full = inflater.unconsumed_tail, len(piece) == PIECE
                if piece:
                    yield piece
            part = inflater.unused_data if inflater.eof else b""

    def _bits(self, part: bytes) -> int:
        """The window bits that zlib wants. Some clients send deflate without zlib's head."""
        if self._coding == "gzip":
            return _GZIP
        has_head = part[0] & 0x0F == 8 and (len(part) < 2 or (part[0] << 8 | part[1]) % 31 == 0)
        return _ZLIB if has_head else _RAW

    def _wrong(self, what: str) -> RequestError:
        return RequestError(
            400, f"the body is not {self._coding}, as Content-Encoding says: {what}"
        )


def _message(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}
