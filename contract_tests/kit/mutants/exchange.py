"""A request that passes the proxy, its answer, and the type of a mutation of both."""

import dataclasses
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import httpx

from contract_tests.kit import bodies, contract


def dumps(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Request:
    """A request with its whole body. `target` is the path and query as the client sent them, with
    the server's `prefix`. `api_key` is the key that the server needs, not the request's."""

    method: str
    target: str
    headers: httpx.Headers
    body: bytes = b""
    prefix: str = ""
    api_key: str | None = None

    @property
    def path(self) -> str:
        """The path as the description has it."""
        return unquote(self.target.partition("?")[0]).removeprefix(self.prefix)

    @property
    def query(self) -> httpx.QueryParams:
        return httpx.QueryParams(self.target.partition("?")[2])

    @property
    def operation(self) -> str:
        """The `operationId`. For an alias it is that of the operation which the alias stands for.
        Empty if the description has no such operation."""
        return _operation(self.method, self.path)

    @property
    def json(self) -> Any:
        """The document of the body; None if that isn't JSON."""
        return parsed(self.body)

    @property
    def has_right_key(self) -> bool:
        """True if the request has the server's key, or the server needs no key."""
        as_token = self.headers.get("authorization") == f"Bearer {self.api_key}"
        return bool(as_token or self.headers.get("x-api-key") == self.api_key)

    def with_right_key(self) -> "Request":
        return self.with_header("Authorization", f"Bearer {self.api_key}")

    def with_header(self, name: str, value: str | None) -> "Request":
        return dataclasses.replace(self, headers=_with_header(self.headers, name, value))

    def with_query(self, **values: str | None) -> "Request":
        """Returns the request with these values in the query; None removes a value."""
        changed = self.query
        for name, value in values.items():
            changed = changed.remove(name) if value is None else changed.set(name, value)
        if changed == self.query:
            return self
        path = self.target.partition("?")[0]
        return dataclasses.replace(self, target=f"{path}?{changed}".removesuffix("?"))

    def with_body(self, body: bytes) -> "Request":
        headers = _with_header(self.headers, "Transfer-Encoding", None)
        headers = _with_header(headers, "Content-Length", str(len(body)))
        return dataclasses.replace(self, body=body, headers=headers)

    def with_json(self, document: Any) -> "Request":
        return self if document == self.json else self.with_body(dumps(document).encode())

    def to(self, method: str, path: str) -> "Request":
        """Returns another request of the same client, without a body."""
        headers = self.headers
        for name in ("Transfer-Encoding", "Content-Length", "Content-Type"):
            headers = _with_header(headers, name, None)
        target = quote(self.prefix + path, safe="/?=&:")
        return dataclasses.replace(self, method=method, target=target, headers=headers, body=b"")


Head: TypeAlias = tuple[int, list[tuple[bytes, bytes]]]
"""The status and the headers of an answer."""


@dataclass(frozen=True)
class Answer:
    """An answer whose body arrives in pieces, and can be read once. A body that raises a
    `ConnectionError` ends there, and the connection with it."""

    status: int
    headers: httpx.Headers
    body: AsyncIterator[bytes]

    @classmethod
    def of(cls, status: int, document: Any, **headers: str) -> "Answer":
        content = {"Content-Type": "application/json"}
        empty = cls(status, httpx.Headers({**content, **headers}), _pieces(b""))
        return empty.with_content(dumps(document).encode())

    @property
    def head(self) -> Head:
        return self.status, self.headers.raw

    @property
    def kind(self) -> str:
        """The content type without parameters."""
        return str(self.headers.get("content-type", "")).partition(";")[0].strip()

    @property
    def is_success(self) -> bool:
        return self.status < 400

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.body])

    def with_status(self, status: int) -> "Answer":
        return dataclasses.replace(self, status=status)

    def with_header(self, name: str, value: str | None) -> "Answer":
        return dataclasses.replace(self, headers=_with_header(self.headers, name, value))

    def with_stream(self, body: AsyncIterator[bytes]) -> "Answer":
        """Returns the answer with another body of unknown length."""
        return dataclasses.replace(self, body=body).with_header("Content-Length", None)

    def with_content(self, content: bytes) -> "Answer":
        """Returns the answer with another, whole body."""
        changed = self.with_header("Content-Length", str(len(content)))
        changed = changed.with_header("Transfer-Encoding", None)
        return dataclasses.replace(changed, body=_pieces(content))

    async def changed(self, change: Callable[[bytes], bytes]) -> "Answer":
        """Returns the answer with its whole body changed."""
        content = await self.read()
        new = change(content)
        kept = dataclasses.replace(self, body=_pieces(content))
        return kept if new == content else self.with_content(new)

    async def changed_json(self, change: Callable[[Any], Any]) -> "Answer":
        """Returns the answer with its JSON document changed; unchanged if the body isn't JSON."""

        def changed(content: bytes) -> bytes:
            document = parsed(content)
            if document is None or (new := change(document)) == parsed(content):
                return content
            return dumps(new).encode()

        return await self.changed(changed)


PassOn: TypeAlias = Callable[[Request], Awaitable[Answer]]
"""Sends a request to the server itself."""
Mutation: TypeAlias = Callable[[Request, PassOn], Awaitable[Answer]]
"""A mutant's function from a request to an answer. It may call the server with this request, with a
changed one, or not at all, and may change the server's answer or make one. Its state is in the
closure."""


async def unchanged(request: Request, pass_on: PassOn) -> Answer:
    """Passes the request and its answer on unchanged."""
    return await pass_on(request)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    if content:
        yield content


def _with_header(headers: httpx.Headers, name: str, value: str | None) -> httpx.Headers:
    changed = headers.copy()
    if value is not None:
        changed[name] = value
    else:
        changed.pop(name, None)
    return changed


def parsed(content: bytes) -> Any:
    """Returns the document of a text; None if the text isn't JSON."""
    try:
        return json.loads(content, parse_constant=_no_constant)
    except ValueError:
        return None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@cache
def _operation(method: str, path: str) -> str:
    try:
        name: str = contract.find(method, path).definition["operationId"]
    except AssertionError:
        return ""
    return bodies.ALIASES.get(name, name)


# ---- streams -----------------------------------------------------------------------------------

_END_OF_EVENT = re.compile(rb"\n\n|\r\n\r\n")


@dataclass(frozen=True)
class Event:
    """One event of a stream. A comment has the `data` None. `raw` has the bytes that the server
    sent, and is empty if a mutant changed the event. Invalid UTF-8 is decoded to surrogates
    (`surrogateescape`)."""

    data: str | None
    name: str = "message"
    raw: bytes = b""

    @property
    def json(self) -> Any:
        """The document; None for a comment and for data that isn't JSON, such as `[DONE]`."""
        return None if self.data is None else parsed(self.data.encode(errors="replace"))

    def with_json(self, document: Any) -> "Event":
        return self if document == self.json else Event(dumps(document), self.name)

    def __bytes__(self) -> bytes:
        if self.raw or self.data is None:
            return self.raw
        name = [] if self.name == "message" else [f"event: {self.name}"]
        lines = [*name, *(f"data: {line}" for line in self.data.split("\n")), "", ""]
        return "\n".join(lines).encode(errors="surrogateescape")


async def read_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Yields the events of a stream as they arrive; the bytes after the last one become a
    comment."""
    rest = b""
    async for piece in pieces:
        rest += piece
        while end := _END_OF_EVENT.search(rest):
            block, rest = rest[: end.end()], rest[end.end() :]
            yield _event(block)
    if rest:
        yield Event(None, raw=rest)


def _event(block: bytes) -> Event:
    data, name = None, "message"
    for field, value in _fields(block):
        if field == "data":
            data = value if data is None else f"{data}\n{value}"
        elif field == "event":
            name = value
    return Event(data, name, block)


def _fields(block: bytes) -> Iterator[tuple[str, str]]:
    for line in block.decode(errors="surrogateescape").split("\n"):
        field, _, value = line.removesuffix("\r").partition(":")
        yield field, value.removeprefix(" ")


async def read_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the lines of a stream as they arrive, with their line ends."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest
