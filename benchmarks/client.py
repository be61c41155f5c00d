"""A minimal HTTP client over asyncio streams, so that measuring costs little processor time.

The client splits a stream's bytes into events and records their times as they arrive; it parses
JSON afterwards.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self
from urllib.parse import urlsplit

TIMEOUT = 300.0
"""Seconds without data after which a request fails."""


class ClientError(Exception):
    """The server answered with an error `status`, or didn't answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Stream:
    """The measurements of one streamed request. Times are `time.perf_counter()` seconds.

    `token_times` has one entry per event with text. `n_tokens` is the number of tokens, which is
    larger if the server puts several tokens into one event.
    """

    started: float
    token_times: list[float] = field(default_factory=list)
    finished: float = 0.0
    n_tokens: int = 0

    @property
    def time_to_first_token(self) -> float:
        return self.token_times[0] - self.started

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in pairwise(self.token_times)]


class Connection:
    """A kept-alive connection to `url`, for one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"not an http URL: {url}")
        self._tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def _open(self) -> None:
        try:
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls or None
            )
        except OSError as error:
            raise ClientError(f"no connection to {self._host}:{self._port}: {error}") from error

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def request(self, method: str, path: str, body: Any = None) -> bytes:
        """Returns the body of the answer. Raises ClientError unless the status is 200."""
        headers = await self._send(method, path, body)
        return b"".join([chunk async for chunk in self._body(headers)])

    async def stream(self, path: str, body: dict[str, Any]) -> Stream:
        """Sends a completion request with `stream` set and reads all its events."""
        result = Stream(started=time.perf_counter())
        arrivals = [event async for event in self.events(path, body)]
        result.finished = time.perf_counter()
        _count(result, arrivals, body["max_tokens"])
        return result

    async def events(self, path: str, body: Any) -> AsyncIterator[tuple[float, bytes]]:
        """Yields the time and the data of each event of a streamed answer on arrival."""
        headers = await self._send("POST", path, body)
        pending = b""
        async for chunk in self._body(headers):
            now = time.perf_counter()
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield now, line[6:]

    async def _send(self, method: str, path: str, body: Any) -> Mapping[bytes, bytes]:
        """Returns the headers of the answer, with names in lower case; its body is still unread."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        try:
            answer = await self._exchange(head.encode() + b"\r\n" + content)
            if answer is None:
                # Some servers close a kept-alive connection after a number of requests.
                self._writer.close()
                await self._open()
                answer = await self._exchange(head.encode() + b"\r\n" + content)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise ClientError(f"{method} {path}: no answer ({error!r})") from error
        if answer is None:
            raise ClientError(f"{method} {path}: no answer")
        status_line, *lines = answer[:-4].split(b"\r\n")
        pairs = [line.split(b":", 1) for line in lines]
        headers = {name.lower(): value.strip() for name, value in pairs}
        status = int(status_line.split()[1])
        if status != 200:
            content = b"".join([chunk async for chunk in self._body(headers)])
            excerpt = content[:300].decode(errors="replace")
            raise ClientError(f"{method} {path}: {status} {excerpt}", status)
        return headers

    async def _exchange(self, request: bytes) -> bytes | None:
        """Returns the head of the answer; None if the server closed the connection without one."""
        try:
            self._writer.write(request)
            async with asyncio.timeout(TIMEOUT):
                return await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
        except ConnectionError:
            pass
        return None

    async def _body(self, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
        """Yields the pieces of an answer's body as they arrive."""
        try:
            if headers.get(b"transfer-encoding", b"").lower() != b"chunked":
                async with asyncio.timeout(TIMEOUT):
                    content = await self._reader.readexactly(int(headers[b"content-length"]))
                yield content
                return
            while True:
                async with asyncio.timeout(TIMEOUT):
                    size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
                    chunk = await self._reader.readexactly(size + 2)
                if size == 0:
                    return
                yield chunk[:-2]
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise ClientError(f"the answer broke off ({error!r})") from error


def _count(result: Stream, arrivals: list[tuple[float, bytes]], max_tokens: int) -> None:
    """Sets `token_times` and `n_tokens` from the events and their times.

    The number of tokens is the server's own, if it reports one. Otherwise it is `max_tokens` for a
    generation that reached this limit, and the number of events with text for any other one.
    """
    n_reported: int | None = None
    finish_reason = None
    for at, data in arrivals:
        if data.strip() == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ClientError(f"the stream ended with an error: {event['error']}")
        for choice in event.get("choices") or []:
            finish_reason = choice.get("finish_reason") or finish_reason
            delta = choice.get("delta") or {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
                result.token_times.append(at)
        if usage := event.get("usage"):
            n_reported = usage["completion_tokens"]
    if not result.token_times:
        raise ClientError("the stream carried no text")
    if n_reported is not None:
        result.n_tokens = n_reported
    elif finish_reason == "length":
        result.n_tokens = max_tokens
    else:
        result.n_tokens = len(result.token_times)
