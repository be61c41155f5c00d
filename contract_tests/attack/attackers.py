"""Attacking clients, each with one connection."""

import contextlib
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable

from contract_tests.attack.shape import CLOSED, Raw, Request, Shape
from contract_tests.kit.server import Server

READ = 1 << 20
"""Bytes of an answer that are checked."""
CHECK_SECONDS = 0.1
ENDS_SECONDS = 5.0
"""The wait for a thread's end. A thread that connects to a stuck server may be left behind."""
NARROW = 4096
"""The buffer size of a client that doesn't read."""


class Attackers:
    """Attacking clients, which all send at once on `begin`. Their bytes are made before, because
    making large ones would delay the honest clients of this process."""

    def __init__(self, server: Server, shape: Shape) -> None:
        assert isinstance(shape.sends, Request | Raw)
        self._server = server
        self._shape = shape
        self._left = False
        self.statuses: Counter[int] = Counter()
        self.bare: set[int] = set()
        """Statuses of errors without the error envelope."""
        self.problems: list[str] = []
        self._lock = threading.Lock()
        data = [shape.sends.encoded(server, i) for i in range(shape.times)]
        self._sockets = [socket.socket() for _ in data]
        self._threads = [
            threading.Thread(target=self._attack, args=each, daemon=True)
            for each in zip(self._sockets, data, strict=True)
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        self._left = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Waits until each attacker has its answer, or `is_over` returns true."""
        for each in self._threads:
            while each.is_alive() and not is_over():
                each.join(CHECK_SECONDS)
        if missing := sum(each.is_alive() for each in self._threads):
            self._add(f"{missing} without an answer")
        self.leave()
        for each in self._threads:
            each.join(ENDS_SECONDS)

    def _add(self, problem: str) -> None:
        with self._lock:
            if problem not in self.problems:
                self.problems.append(problem)

    def _attack(self, connection: socket.socket, data: bytes) -> None:
        try:
            if self._shape.leaves:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
            connection.connect(self._server.address)
            with contextlib.suppress(ConnectionError):  # refused before all of it was read
                connection.sendall(data)
            if not self._shape.leaves:
                status, content = _answer(connection)
                if not self._left:
                    with self._lock:
                        self.statuses[status] += 1
                    self._judge(status, content)
        except OSError as error:
            if not (self._shape.leaves or self._left):
                self._add(f"{type(error).__name__}")

    def _judge(self, status: int, content: bytes) -> None:
        if self._shape.secret and self._shape.secret.encode() in content:
            self._add(f"the answer has `{self._shape.secret}`")
        if status >= 400 and not is_envelope(status, content):
            self.bare.add(status)


def _answer(connection: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read(READ)
    except (http.client.HTTPException, ConnectionError):
        return CLOSED, b""


def is_envelope(status: int, content: bytes) -> bool:
    """True if an answer is an error in the described format."""
    try:
        error = json.loads(content)["error"]
        return error["code"] == status and bool(error["message"]) and bool(error["type"])
    except (ValueError, LookupError, TypeError):
        return False
