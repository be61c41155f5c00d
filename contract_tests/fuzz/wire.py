"""Requests as bytes on a socket, and their answers, without a client library in between."""

import contextlib
import json
import shlex
import socket
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import h11

JSON = "application/json"
NOTHING: Any = object()
"""The body of a request that has no JSON value."""
READ = 1 << 16
MAX_HEAD = 1 << 20
SHOWN = 4000
"""Characters of a body in a command."""

Headers = tuple[tuple[str, str], ...]


class End(Enum):
    """The end of an exchange."""

    WHOLE = "the answer is whole"
    LEFT = "the client left"
    CLOSED = "the server closed the connection without an answer"
    CUT = "the server closed the connection within its answer"
    LATE = "no whole answer in time"
    ODD = "the answer is no HTTP"


@dataclass(frozen=True)
class Target:
    """The address of a server, and the headers that it needs."""

    address: tuple[str, int]
    prefix: str = ""
    auth: Headers = ()


@dataclass(frozen=True)
class Sent:
    """A request.

    `operation` is the operation that it is for, if any; `body` is the JSON value in its `content`,
    if any. `raw` has its bytes if they are no ordinary request. The client `leaves` after so many
    seconds. With `strict`, only the documented statuses of the operation are right. With `halves`,
    the request is incomplete, and the client sends nothing more after it.
    """

    method: str
    path: str
    operation: str | None = None
    headers: Headers = ()
    content: bytes | None = None
    body: Any = NOTHING
    raw: bytes | None = None
    leaves: float | None = None
    strict: bool = True
    halves: bool = False

    def encoded(self, target: Target) -> bytes:
        if self.raw is not None:
            return self.raw
        given = {name.lower() for name, _ in self.headers}
        host, port = target.address
        fields = [("Host", f"{host}:{port}")] if "host" not in given else []
        fields += [each for each in target.auth if each[0].lower() not in given]
        fields += self.headers
        if self.content is not None and not given & {"content-length", "transfer-encoding"}:
            fields.append(("Content-Length", str(len(self.content))))
        lines = [f"{self.method} {target.prefix}{self.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields]
        head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass")
        return head + (self.content or b"")

    def with_body(self, body: Any) -> "Sent":
        return replace(self, body=body, content=dumped(body))

    def command(self, target: Target) -> str:
        """Returns the request as a curl command, if curl can send it."""
        if self.raw is not None:
            return f"these bytes, {len(self.raw)} in all: {self.raw[:SHOWN]!r}"
        host, port = target.address
        words = ["curl", "-X", self.method, f"http://{host}:{port}{target.prefix}{self.path}"]
        for name, value in (*target.auth, *self.headers):
            words += ["-H", f"{name}: {value}"]
        if self.content is not None:
            text = self.content.decode("latin-1")
            more = f" # and {len(text) - SHOWN} more" if len(text) > SHOWN else ""
            return f"{shlex.join(words)} --data-binary {shlex.quote(text[:SHOWN])}{more}"
        return shlex.join(words)


def dumped(value: Any) -> bytes:
    """Returns a value as JSON, with half characters as escapes."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_request(method: str, path: str, operation: str | None, body: Any, *rest: Any) -> Sent:
    headers = (("Content-Type", JSON), *rest)
    return Sent(method, path, operation, headers, dumped(body), body)


@dataclass(frozen=True)
class Answer:
    """An answer; `status` is 0 if there is none."""

    end: End
    seconds: float
    status: int = 0
    headers: Headers = ()
    content: bytes = b""
    why: str = ""

    @property
    def json(self) -> Any:
        """The document; None if there is no complete one."""
        try:
            return json.loads(self.content) if self.end is End.WHOLE else None
        except ValueError:
            return None

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


class Connection:
    """A connection to a server, which is reused as long as it lasts and then replaced."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._socket: socket.socket | None = None

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def exchange(self, sent: Sent, patience: float) -> Answer:
        """Sends a request and reads its answer. If the server had closed the connection before,
        opens a new one, once."""
        answer, used = self._tried(sent, patience)
        if answer.end is End.CLOSED and used and sent.raw is None:
            answer, _ = self._tried(sent, patience)
        return answer

    def _tried(self, sent: Sent, patience: float) -> tuple[Answer, bool]:
        used = self._socket is not None
        if self._socket is None:
            self._socket = socket.create_connection(self.target.address, timeout=patience)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = time.monotonic()
        end = begun + (patience if sent.leaves is None else sent.leaves)
        reader = _Reader(sent.method)
        how = self._moved(self._socket, sent, reader, end)
        if how is End.LATE and sent.leaves is not None:
            how = End.LEFT
        if how is not End.WHOLE or not reader.goes_on or sent.halves or sent.raw:
            self.close()
        answer = Answer(
            how, time.monotonic() - begun, reader.status, reader.headers, reader.content, reader.why
        )
        return answer, used

    def _moved(self, connection: socket.socket, sent: Sent, reader: "_Reader", end: float) -> End:
        try:
            # The server may have answered before reading the whole request.
            with contextlib.suppress(ConnectionError):
                connection.settimeout(max(end - time.monotonic(), 0.001))
                connection.sendall(sent.encoded(self.target))
                if sent.halves:
                    connection.shutdown(socket.SHUT_WR)
            while not reader.is_whole:
                connection.settimeout(max(end - time.monotonic(), 0.001))
                reader.take(connection.recv(READ))
        except TimeoutError:
            return End.LATE
        except ConnectionError:
            return End.CUT if reader.status else End.CLOSED
        except h11.RemoteProtocolError as error:
            if reader.is_empty:
                return End.CLOSED
            reader.why = str(error)
            return End.CUT if reader.has_ended else End.ODD
        return End.WHOLE


class _Reader:
    """Reads one answer strictly."""

    def __init__(self, method: str) -> None:
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        kind = "HEAD" if method == "HEAD" else "POST"
        self._state.send(h11.Request(method=kind, target="/", headers=[("Host", "x")]))
        self._state.send(h11.EndOfMessage())
        self._parts: list[bytes] = []
        self.status = 0
        self.headers: Headers = ()
        self.why = ""
        self.is_whole = False
        self.is_empty = True
        self.has_ended = False

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    @property
    def goes_on(self) -> bool:
        """True if another request may be sent on the connection."""
        return self._state.their_state is h11.DONE and not self._state.trailing_data[0]

    def take(self, data: bytes) -> None:
        self.is_empty = self.is_empty and not data
        self.has_ended = not data
        self._state.receive_data(data)
        while True:
            event = self._state.next_event()
            match event:
                case h11.Response():
                    self.status = event.status_code
                    self.headers = tuple(
                        (name.decode("ascii"), value.decode("latin-1"))
                        for name, value in event.headers
                    )
                case h11.Data():
                    self._parts.append(bytes(event.data))
                case h11.EndOfMessage():
                    self.is_whole = True
                    return
                case h11.InformationalResponse():
                    pass
                case _:
                    return
