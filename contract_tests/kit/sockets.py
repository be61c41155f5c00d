"""A client of the Responses API's WebSocket, which checks each event against the description."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_socket

from contract_tests.kit import bodies, contract, lint
from contract_tests.kit.server import SECONDS, Server

PATH = "/v1/responses"
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
MAX_MESSAGE = 64 << 20


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
"""The fields of a valid handshake."""


def shaken(server: Server, name: str) -> list[httpx.Response]:
    """Returns the answer to a handshake. The connection is closed at once."""
    where = bodies.path(name)
    with server.http.stream("GET", where, headers=HANDSHAKE) as answer:
        head = httpx.Response(answer.status_code, headers=answer.headers, request=answer.request)
        return [head]


def plain(server: Server, name: str) -> list[httpx.Response]:
    """Returns the answers to requests that are no handshakes."""
    where = bodies.path(name)
    without = [{k: v for k, v in HANDSHAKE.items() if k != field} for field in HANDSHAKE]
    return [server.get(where, headers=fields) for fields in ({}, *without)]


class Socket:
    """An open WebSocket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        described = contract.operations()["connect_responses"].definition
        self._schema = described["x-websocket"]["event"]

    def send(self, **event: Any) -> None:
        self.connection.send(json.dumps(event))

    def create(self, **fields: Any) -> None:
        """Sends a `response.create`."""
        self.send(type="response.create", **fields)

    def receive(self) -> Any:
        """Returns the next event, after checking it."""
        event = json.loads(self.connection.recv(timeout=SECONDS))
        problems = list(lint.errors(self._schema, event))
        assert not problems, f"{problems} in {event}"
        return event

    def turn(self) -> list[Any]:
        """Returns the events until the end of the next response, or until an error."""
        events = [self.receive()]
        while events[-1]["type"] not in TERMINAL:
            events.append(self.receive())
        return events

    def respond(self, **fields: Any) -> Any:
        """Requests a response, and returns its last event."""
        self.create(**fields)
        return self.turn()[-1]


@contextlib.contextmanager
def connect(server: Server, path: str = PATH, **headers: str) -> Iterator[Socket]:
    """Opens a WebSocket. Skips the test if the server has none. Raises
    `websockets.exceptions.InvalidStatus` if the server refuses it."""
    contract.check(server.get(path), 426)  # `watching` skips the test after 404 and 405
    url = server.url.replace("http", "ws", 1) + path
    fields = {**server.auth, **headers}
    with connect_socket(
        url, additional_headers=fields, max_size=MAX_MESSAGE, open_timeout=SECONDS, proxy=None
    ) as connection:
        yield Socket(connection)


def refused(server: Server, path: str = PATH, **headers: str) -> Any:
    """Returns (status, document) of the answer to a handshake that is refused."""
    try:
        with connect(server, path, **headers):
            raise AssertionError("the server accepts the WebSocket")
    except InvalidStatus as error:
        return error.response.status_code, json.loads(error.response.body or b"null")
