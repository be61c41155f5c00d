"""A small HTTP server with images, for requests that have them by URL."""

import asyncio
import contextlib

from contract_tests.load.asks import drawn


async def start() -> tuple[asyncio.Server, str]:
    """Returns the server and its address; `/N.png` is a different image for each number."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split()[1]
        content = drawn(int(path.strip("/").removesuffix(".png")))
        fields = f"Content-Type: image/png\r\nContent-Length: {len(content)}\r\nConnection: close"
        writer.write(f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + content)
        await writer.drain()
    writer.close()
