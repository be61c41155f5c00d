"""Request bodies while they arrive: limits of their sizes, and decompression."""

import asyncio
import re
import zlib
from collections.abc import Iterator

from starlette.types import Message, Receive, Scope

from specllama.handlers.http.errors import RequestError

# ---- Limits: the values in one body, counted while it arrives, and the bytes of all bodies
# together.
#
# A value costs far more memory than its text: `[],` is three bytes, and a hundred after decoding.


MAX_VALUES = 1 << 20
"""Values and keys in one body."""
MAX_NODES = 1 << 17
"""Objects, arrays and keys in one body; each takes about ten times the work of a number."""
LARGE = 1 << 14
"""A body with more values and keys is processed in other processes and threads."""
FEW = 1 << 11
"""An invalid body with up to so many values and keys is explained in the event loop."""
FREE = 1 << 20
"""Bytes of the largest body that doesn't count, so that small requests are always accepted."""
SHARE = 8
"""The number of bodies of the largest size that fit into the server's budget."""
RETRY_AFTER = 5  # s

_BEFORE_VALUES = b",:[{"  # one of these precedes every value and key except the outermost
_BEFORE_NODES = b":[{"  # every key, array and object has one of these
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)  # to its end, or the text's end


class BodyBudget:
    """The bytes of all bodies in memory."""

    def __init__(self) -> None:
        self._held = 0

    def take(self, n_bytes: int, most: int) -> None:
        """Adds `n_bytes`. Raises RequestError if there would be more than `most`."""
        if self._held + n_bytes > most:
            raise RequestError(
                503,
                f"the bodies of other requests use up the limit of {most} bytes",
                {"Retry-After": str(RETRY_AFTER)},
            )
        self._held += n_bytes

    def give(self, n_bytes: int) -> None:
        self._held -= n_bytes


def n_values(scope: Scope) -> int:
    """Returns an upper bound of the values and keys in a request's body, which has been read."""
    n: int = scope["state"].get("n_values", 0)
    return n


class ValueCount:
    """The number of values in a JSON text that arrives in parts.

    The number of punctuation marks is an upper bound. Marks inside of strings are excluded only if
    the bound is too high for a small body. This is done part by part, so that other tasks run in
    between.
    """

    def __init__(
        self, most: int = MAX_VALUES, most_nodes: int = MAX_NODES, large: int = LARGE
    ) -> None:
        self._most = most
        self._most_nodes = most_nodes
        self._trusted = min(most, most_nodes, large)
        self._parts: list[bytes] | None = []  # None: each part is scanned when it arrives
        self._n_nodes = 0
        self._open = b""  # the beginning of a string that continues in the next part
        self.n = 0  # an upper bound

    async def add(self, part: bytes) -> None:
        """Counts the values in the next part. Raises RequestError for too many values."""
        if self._parts is None:
            self._scan(part)
        else:
            self._parts.append(part)
            self.n += _count(part, _BEFORE_VALUES)
            if self.n < self._trusted:
                return
            parts, self._parts, self.n = self._parts, None, 0
            for each in parts:
                self._scan(each)
                await asyncio.sleep(0)
        if self.n >= self._most:
            raise RequestError(413, f"the body has more than {self._most} values and keys")
        if self._n_nodes >= self._most_nodes:
            raise RequestError(
                413, f"the body has more than {self._most_nodes} objects, arrays and keys"
            )

    def _scan(self, part: bytes) -> None:
        """Counts the punctuation marks outside of strings."""
        pieces = _STRING.split(self._open + part)  # text outside of strings, and closing quotes
        is_open = len(pieces) > 1 and not pieces[-2]
        self._open = b'"' + pieces[-1] if is_open else b""  # keeps a backslash for the next part
        outside = b"".join(pieces)
        self.n += _count(outside, _BEFORE_VALUES)
        self._n_nodes += _count(outside, _BEFORE_NODES)


def _count(text: bytes, marks: bytes) -> int:
    return len(text) - len(text.translate(None, marks))


# ---- Compressed bodies of requests (RFC 9110, 8.4): gzip and deflate.


CODINGS = ("gzip", "deflate")
ACCEPTED = ", ".join(CODINGS)
PIECE = 1 << 20
"""Bytes of a body that are decompressed at a time; other tasks run in between."""
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


def coding_of(field: bytes) -> str:
    """Returns the coding in a Content-Encoding; "" for no coding. Raises RequestError for an
    unsupported one."""
    name = field.decode("latin-1").strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return ""
    if name in CODINGS:
        return name
    raise RequestError(
        415,
        f"Content-Encoding: {name[:50]} is not supported; {ACCEPTED} are",
        {"Accept-Encoding": ACCEPTED},
    )


class Inflated:
    """The messages of a request with a compressed body, decompressed: at most `PIECE` bytes in
    each. A body of more than `limit` compressed bytes is refused, too, because it may decompress to
    very little."""

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
        """Returns the next message. Raises RequestError for data that can't be decompressed."""
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
                    raise self._wrong("there are bytes after its end")
                inflater = self._inflater = zlib.decompressobj(self._bits(part))
            full = True
            while full and not inflater.eof:
                piece = inflater.decompress(part, PIECE)
                part, full = inflater.unconsumed_tail, len(piece) == PIECE
                if piece:
                    yield piece
            part = inflater.unused_data if inflater.eof else b""

    def _bits(self, part: bytes) -> int:
        """Returns the window bits for zlib. Some clients send deflate without zlib's header."""
        if self._coding == "gzip":
            return _GZIP
        has_head = part[0] & 0x0F == 8 and (len(part) < 2 or (part[0] << 8 | part[1]) % 31 == 0)
        return _ZLIB if has_head else _RAW

    def _wrong(self, what: str) -> RequestError:
        return RequestError(
            400, f"the body is not valid {self._coding} (its Content-Encoding): {what}"
        )


def _message(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}
