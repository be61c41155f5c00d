"""uvicorn's output, as it is sent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

from uvicorn import Config, Server

from specllama.connection import Connection
from specllama.transport import Gathering, Stall

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def _app(scope: dict[str, Any], receive: object, send: Send) -> None:
    body = scope["query_string"]
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer a: b")]
    if body:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body or b"x-header: small\r\n"})


async def _answer(query: str) -> bytes:
    config = Config(_app, http=Connection, lifespan="off", port=0, log_level="critical")
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    server.should_exit = True
    await serving
    return answer


def test_a_head_leaves_with_the_beginning_of_its_body() -> None:
    async def main() -> None:
        written: list[bytes] = []
        closing = [False]
        under: Any = Mock(write=written.append, is_closing=lambda: closing[0])
        transport = Gathering(under, Stall(under, 1.0))
        transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
        assert written == []
        transport.write(b"body")
        assert written == [b"HTTP/1.1 200 OK\r\n\r\nbody"]
        transport.write(b"more")
        assert written[1:] == [b"more"], "at once"
        transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await asyncio.sleep(0)
        assert written[2:] == [b"HTTP/1.1 204 No Content\r\n\r\n"], "it has no body"
        closing[0] = True
        transport.write(b"late")
        assert len(written) == 3

    asyncio.run(main())


def test_names_of_headers_have_their_usual_capitals() -> None:
    head, _, body = asyncio.run(_answer("")).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Type: text/plain" in lines
    assert b"WWW-Authenticate: Bearer a: b" in lines
    assert b"Transfer-Encoding: chunked" in lines
    assert b"x-header: small\r\n" in body


def test_values_and_bodies_stay_as_they_are() -> None:
    head, _, body = asyncio.run(_answer("content-type:a")).partition(b"\r\n\r\n")
    assert b"Content-Length: 14" in head.split(b"\r\n")
    assert body == b"content-type:a"
