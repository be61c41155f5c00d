"""An attack as plain data."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from contract_tests.kit.server import Server

JSON = "application/json"
CLOSED = 0
"""The status for a connection that ends without an answer."""


@dataclass(frozen=True)
class Request:
    """An HTTP request. Its body is made on use, because it may be large, from the request's number,
    because some bodies have to be new each time."""

    path: str
    body: Callable[[int], Any] | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    key: bool = True

    def encoded(self, server: Server, number: int) -> bytes:
        content = b""
        if self.body is not None:
            made = self.body(number)
            content = made if isinstance(made, bytes) else json.dumps(made).encode()
        host, port = server.address
        fields = {
            "Host": f"{host}:{port}",
            "Connection": "close",
            **({"Content-Type": JSON, "Content-Length": str(len(content))} if content else {}),
            **(server.auth if self.key else {}),
            **self.headers,
        }
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode() + content


@dataclass(frozen=True)
class Raw:
    """Bytes on a connection, not necessarily a request."""

    data: Callable[[], bytes]

    def encoded(self, server: Server, number: int) -> bytes:
        return self.data()


class Harm(Enum):
    """Harm to processes."""

    KILL_ENGINE = "the engine process is killed"
    KILL_TEMPLATES = "the template process is killed"
    PAUSE = "the server process is stopped for 40 seconds"


@dataclass(frozen=True)
class Launch:
    """A separate server with odd options or weights, which gets one request."""

    options: tuple[str, ...] = ()
    broken_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attack of `times` equal requests at once.

    `statuses` are the right answers. With `leaves`, the clients read no answer, and leave after the
    honest clients have made progress. `secret` must not be in an answer.
    """

    row: int
    name: str
    what: str
    sends: Request | Raw | Harm | Launch
    times: int = 1
    statuses: frozenset[int] = frozenset()
    leaves: bool = False
    secret: str = ""
