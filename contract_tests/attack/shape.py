"""What an attack is: plain data."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from contract_tests.kit.server import Server

JSON = "application/json"
CLOSED = 0
"""Stands for a status where a connection ends without an answer."""


@dataclass(frozen=True)
class Request:
    """An HTTP request. Its body is made when it is needed, since it may be large, and of the number
    of the request, since some have to be new each time."""

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
    """Bytes on a connection, which need not be a request."""

    data: Callable[[], bytes]

    def encoded(self, server: Server, number: int) -> bytes:
        return self.data()


class Harm(Enum):
    """What happens to processes."""

    KILL_ENGINE = "the engine process is killed"
    KILL_TEMPLATES = "the template process is killed"
    PAUSE = "the server process is stopped for 40 seconds"


@dataclass(frozen=True)
class Launch:
    """A server of its own, with odd options or weights; it gets one request."""

    options: tuple[str, ...] = ()
    broken_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attack: `times` of the same at once.

    `statuses` are the answers that are right; with `leaves`, no answer is read: the clients
    go away after the honest ones have got on. `secret` must not be in an answer.
    """

    row: int
    name: str
    what: str
    sends: Request | Raw | Harm | Launch
    times: int = 1
    statuses: frozenset[int] = frozenset()
    leaves: bool = False
    secret: str = ""
