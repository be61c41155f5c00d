"""Bodies of requests that are compressed (RFC 9110, 8.4): gzip and deflate."""

import asyncio
import zlib
from collections.abc import Iterator

from starlette.types import Message, Receive

from specllama.handlers.http.errors import RequestError

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
