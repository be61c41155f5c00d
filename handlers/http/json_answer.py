"""JSON answers, and their encoding."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.handlers.http.current import CancelOnDisconnect

# ---- Encoding of values, at once or in short parts.
#
# Encoding holds the GIL: encoding a million numbers at once would block all other requests.


SMALL = 4096  # values that are encoded at once; a long text counts as several values
_RUN = 512  # items of an array that are encoded at once, if they are small
_LONG = 256  # characters of a text that count as one value

T = TypeVar("T")
V = TypeVar("V")


class Lazy(Generic[T]):
    """An array whose elements are made from `items` while it is encoded. `size` is the approximate
    number of values in each element."""

    def __init__(self, make: Callable[[T], Any], items: Sequence[T], size: int) -> None:
        self._make = make
        self._items = items
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)

    @property
    def weight(self) -> int:
        """The approximate number of values in all elements."""
        return len(self._items) * self._size


def lazy(make: Callable[[T], V], items: Sequence[T], size: int) -> list[V]:
    """Returns an array whose elements are made while it is encoded. It is declared as a list, but
    only the encoder can use it as one. The arguments are those of `Lazy`."""
    return cast("list[V]", Lazy(make, items, size))


def _known(value: Any) -> Any:
    if isinstance(value, Lazy):
        return list(value)
    raise NotImplementedError(f"no JSON for {type(value)}")


_encode = msgspec.json.Encoder(enc_hook=_known).encode
_SEPARATORS = [(each.encode(), b"\\u%04x" % ord(each)) for each in "\x85\u2028\u2029"]
"""Characters at which Python's `splitlines`, used by Ollama's client, and httpx' `iter_lines` split
lines: the UTF-8 bytes, and the escape in JSON."""


def encode(value: Any) -> bytes:
    """Returns a value as JSON, with Unicode's line separators escaped."""
    data = _encode(value)
    if data.isascii():
        return data
    for separator, escape in _SEPARATORS:
        if separator in data:
            data = data.replace(separator, escape)
    return data


def is_large(value: Any) -> bool:
    """True for a value that should be encoded in parts."""
    return _weight(value) > SMALL


def parts(value: Any) -> Iterator[bytes]:
    """Yields the JSON of `value` in parts, each of about `SMALL` values."""
    if not is_large(value):
        yield encode(value)
    elif isinstance(value, dict):
        mark = b"{"
        for key, inner in value.items():
            yield b"".join((mark, encode(key), b":"))
            yield from parts(inner)
            mark = b","
        yield b"}"
    elif isinstance(value, Lazy):
        yield from _array(parts(item) for item in value)
    elif isinstance(value, list):
        yield from _array(
            run
            for start in range(0, len(value), _RUN)
            for run in _runs(value[start : start + _RUN])
        )
    else:
        yield encode(value)


def _runs(items: list[Any]) -> Iterator[Iterator[bytes]]:
    """Yields the JSON of `items` without brackets: all at once if they are small, otherwise one
    item at a time."""
    if is_large(items):
        yield from map(parts, items)
    else:
        yield iter((encode(items)[1:-1],))


def _array(runs: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
    mark = b"["
    for run in runs:
        yield mark
        yield from run
        mark = b","
    yield b"[]" if mark == b"[" else b"]"


_NUMBERS = frozenset((int, float))


def _weight(value: Any) -> int:
    """Returns the number of values in `value`, or any number above SMALL if it has more."""
    n = 0
    waiting = [value]
    while waiting and n <= SMALL:
        each = waiting.pop()
        n += 1
        if isinstance(each, str):
            n += len(each) // _LONG
        elif isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            if len(each) > SMALL:
                return len(each)
            if _NUMBERS.issuperset(map(type, each)):
                n += len(each)
            else:
                waiting.extend(each)
        elif isinstance(each, Lazy):
            n += each.weight
    return n


ENOUGH = 1 << 16  # bytes that are sent together


class JSONAnswer(Response):
    """A response whose content is any value that msgspec can encode.

    Large content has no Content-Length: it is encoded while it is sent, and other tasks run in
    between.
    """

    media_type = "application/json"

    def __init__(self, content: Any, *, headers: Mapping[str, str] | None = None) -> None:
        self._large = is_large(content)
        self._content = content
        if not self._large:
            super().__init__(content, headers=headers)
            return
        self.status_code = 200
        self.background = None
        self.init_headers(headers)

    def render(self, content: Any) -> bytes:
        return encode(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._large:
            await super().__call__(scope, receive, send)
            return
        with suppress(ClientDisconnect):  # the client has left
            async with CancelOnDisconnect(receive):
                await self._send_parts(send)

    async def _send_parts(self, send: Send) -> None:
        head = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        started, waiting, size = False, [], 0
        for part in parts(self._content):
            waiting.append(part)
            size += len(part)
            if size >= ENOUGH:
                if not started:
                    started = True
                    await send(head)
                await send(_body(waiting, more=True))
                waiting, size = [], 0
                await asyncio.sleep(0)
        if not started:
            await send(head)
        await send(_body(waiting, more=False))


def _body(waiting: list[bytes], *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"".join(waiting), "more_body": more}
