"""The HTTP protocol of uvicorn, with one write for an answer instead of two."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.processes.outbox import Outbox


class Protocol(HttpToolsProtocol):
    """uvicorn writes the head of an answer and its body apart; here they leave together."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport))


class _Gathering(asyncio.Transport):
    """A transport whose writes of one turn of the event loop leave together."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._outbox = Outbox(transport)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._outbox.write(bytes(data))

    def close(self) -> None:
        self._outbox.flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
