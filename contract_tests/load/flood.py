"""Thousands of requests at once over plain sockets, whose answers are read slowly, and the rules
for refusals."""

import asyncio
import contextlib
import json
import re
import resource
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

SPARE = 64
"""Descriptors that this process needs besides its connections."""
SIP = 512
"""Bytes that a slow client reads at a time."""
PAUSE = 2.0  # s between two readings of a slow client
OPENING = 512
"""Connections that are opened at the same time."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ENDS = (b"[DONE]", b"message_stop", b'"stop":true')
MESSAGES = "/v1/messages"
LONG = 120
"""A longer Retry-After in seconds needs `X-Should-Retry: false`."""


@dataclass
class Answer:
    """An answer; a status of 0 means that there was none. Times are seconds of
    `time.monotonic`."""

    path: str
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    status: int = 0
    head: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: str = ""
    sent: bool = False  # the whole request
    left: bool = False  # the client has closed the connection before the end

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    @property
    def is_open(self) -> bool:
        """True for a stream that has begun and hasn't ended."""
        return self.status == 200 and not self.ended

    @property
    def is_whole(self) -> bool:
        """True for a right answer; a stream has its end."""
        streams = "event-stream" in self.head.get("content-type", "")
        return self.status == 200 and (not streams or any(end in self.body for end in ENDS))


def raise_limit() -> int:
    """Raises the limit of open descriptors as far as allowed, and returns the number of connections
    that this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - SPARE


class Sockets:
    """Opens a connection for each request. The server closes it after the answer."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self._opening = asyncio.Semaphore(OPENING)

    async def send(
        self,
        path: str,
        body: Any = None,
        key: str = "",
        *,
        answer: Answer | None = None,
        hurry: asyncio.Event | None = None,
    ) -> Answer:
        """Sends a request and returns its answer, which is also in `answer` while it arrives. It is
        read slowly until `hurry` is set."""
        answer = answer or Answer(path)
        writer: asyncio.StreamWriter | None = None
        try:
            async with self._opening:
                reader, writer = await self._connected(slow=hurry is not None)
                writer.write(self._request(path, body, key))
                await writer.drain()
                answer.sent = True
            await _receive(reader, answer, hurry)
        except asyncio.CancelledError:
            answer.left = True
            raise
        except (OSError, EOFError, ValueError) as error:
            answer.cut = f"{type(error).__name__}: {error}"
        finally:
            answer.ended = time.monotonic()
            if writer is not None:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        return answer

    async def _connected(self, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        connection.setblocking(False)
        if slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (self.host, self.port))
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection, limit=SIP if slow else 1 << 16)

    def _request(self, path: str, body: Any, key: str) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Connection: close",
            *([f"Authorization: Bearer {key}"] if key else []),
            *(
                [f"Content-Type: application/json\r\nContent-Length: {len(content)}"]
                if body
                else []
            ),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + content


async def _receive(
    reader: asyncio.StreamReader, answer: Answer, hurry: asyncio.Event | None
) -> None:
    received = b""
    while chunk := await reader.read(SIP if hurry and not hurry.is_set() else 1 << 16):
        received += chunk
        if not answer.status and b"\r\n\r\n" in received:
            head, _, received = received.partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            found = STATUS.match(first)
            if found is None:
                raise ValueError(f"no status: {first[:80]!r}")
            fields = (line.decode("latin-1").partition(":") for line in lines)
            answer.head = {name.lower(): value.strip() for name, _, value in fields}
            answer.status = int(found[1])
        if hurry is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), PAUSE)
    answer.body = received
    if not answer.status:
        raise EOFError("closed without an answer")


def health(host: str, port: int, seconds: float) -> Answer:
    """Asks for `/health` and waits for the answer. For a thread of its own, so that the time isn't
    that of this process's event loop."""
    answer = Answer("/health")
    try:
        with socket.create_connection((host, port), seconds) as connection:
            connection.sendall(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            found = STATUS.match(connection.recv(1 << 16))
        answer.status = int(found[1]) if found else 0
        answer.cut = "" if found else "closed without an answer"
    except OSError as error:
        answer.cut = f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()
    return answer


def fault_of_refusal(answer: Answer, limits: Mapping[str, int]) -> str:
    """Returns what is wrong with a refusal, or an empty text. `limits` are the limits of the key by
    their kind, `requests` or `tokens`."""
    head = answer.head
    if not re.fullmatch(r"[1-9]\d*", head.get("retry-after", "")):
        return f"Retry-After is {head.get('retry-after')!r}"
    if int(head["retry-after"]) > LONG and head.get("x-should-retry") != "false":
        return f"Retry-After is {head['retry-after']}, without X-Should-Retry"
    for kind, limit in limits.items():
        names = {part: _name(answer.path, kind, part) for part in ("limit", "remaining", "reset")}
        if missing := [name for name in names.values() if name not in head]:
            return f"without {', '.join(missing)}"
        if head[names["limit"]] != str(limit):
            return f"{names['limit']} is {head[names['limit']]}, and should be {limit}"
        if not 0 <= int(head[names["remaining"]]) <= limit:
            return f"{names['remaining']} is {head[names['remaining']]}"
    return _fault_of_envelope(answer)


def _name(path: str, kind: str, part: str) -> str:
    if path == MESSAGES:
        return f"anthropic-ratelimit-{kind}-{part}"
    return f"x-ratelimit-{part}-{kind}"


def _fault_of_envelope(answer: Answer) -> str:
    try:
        document = json.loads(answer.body)
        error = document["error"]
        message, kind = error["message"], error["type"]
    except (ValueError, LookupError, TypeError):
        return f"no envelope: {answer.body[:200]!r}"
    if answer.path == MESSAGES:
        known = {429: "rate_limit_error", 503: "overloaded_error", 529: "overloaded_error"}
        is_right = document.get("type") == "error"
    else:
        known = {429: "rate_limit_error", 503: "unavailable_error"}
        is_right = error.get("code") == answer.status
    if not is_right or kind != known.get(answer.status) or not message:
        return f"status {answer.status} with the envelope {document}"
    return ""
