"""Accepting many connections in one turn of the event loop."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Coroutine
from typing import Any, cast

import pytest
import trustme

from contract_tests.kit.server import SECONDS
from specllama import acceptor
from specllama.acceptor import AT_ONCE, Acceptor

pytestmark = pytest.mark.slow

uvloop = pytest.importorskip("uvloop")


class Greeting(asyncio.Protocol):
    """Sends a greeting, and closes the connection."""

    n_made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeting.n_made += 1
        cast(asyncio.Transport, transport).write(b"hello")
        transport.close()


class Listener(socket.socket):
    """A listening socket, on which the first `accept` calls fail with the given errors."""

    errors: list[int]

    def __init__(self, *errors: int) -> None:
        super().__init__()
        self.errors = list(errors)
        self.bind(("127.0.0.1", 0))
        self.listen(2 * AT_ONCE)

    def accept(self) -> Any:
        if self.errors:
            raise OSError(self.errors.pop(0), "no room")
        return super().accept()


def run(what: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        Greeting.n_made = 0
        runner.run(asyncio.wait_for(what, SECONDS))


async def greeted(address: Any, tls: ssl.SSLContext | None = None) -> bytes:
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname=name)
    answer = await reader.read()
    writer.close()
    return answer


def test_a_turn_accepts_many_connections_but_not_all() -> None:
    async def check() -> None:
        listener = Listener()
        clients = [socket.create_connection(listener.getsockname()) for _ in range(AT_ONCE + 10)]
        accepting = Acceptor(listener, Greeting)
        at_once = []
        while Greeting.n_made < len(clients):
            before = Greeting.n_made
            await asyncio.sleep(0)
            at_once.append(Greeting.n_made - before)
        assert AT_ONCE in at_once
        assert max(at_once) == AT_ONCE
        for client in clients:
            client.close()
        accepting.close()
        await accepting.wait_closed()

    run(check())


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENOBUFS])
def test_without_room_it_accepts_later(
    reason: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE", 0.01)

    async def check() -> None:
        listener = Listener(reason, reason)
        accepting = Acceptor(listener, Greeting)
        assert await greeted(listener.getsockname()) == b"hello"
        accepting.close()

    run(check())
    assert [record.getMessage() for record in caplog.records if record.name == "http"] == [
        "no connection is accepted for 0.01 s: no room"
    ] * 2


def test_a_client_that_left_before_is_skipped() -> None:
    async def check() -> None:
        listener = Listener(errno.ECONNABORTED)
        accepting = Acceptor(listener, Greeting)
        assert await greeted(listener.getsockname()) == b"hello"
        accepting.close()

    run(check())


def test_tls() -> None:
    """A client that doesn't speak TLS, and one that never sends a byte, delay neither other clients
    nor the shutdown."""
    authority = trustme.CA()
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)

    async def check() -> None:
        listener = Listener()
        address = listener.getsockname()
        accepting = Acceptor(listener, Greeting, server_side)
        assert accepting.sockets == (listener,)
        _, plain = await asyncio.open_connection(*address)
        plain.write(b"GET / HTTP/1.1\r\n\r\n")
        silent, writer = await asyncio.open_connection(*address)
        assert await greeted(address, client_side) == b"hello"
        accepting.close()
        await accepting.wait_closed()
        assert await silent.read() == b""
        for each in (plain, writer):
            each.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    run(check())
    assert Greeting.n_made == 1


def test_a_close_while_it_pauses() -> None:
    async def check() -> None:
        listener = Listener(errno.EMFILE)
        accepting = Acceptor(listener, Greeting)
        client = socket.create_connection(listener.getsockname())
        while listener.errors:
            await asyncio.sleep(0)
        accepting.close()
        await accepting.wait_closed()
        client.close()

    run(check())
