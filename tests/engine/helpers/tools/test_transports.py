"""Answers over HTTP have limits."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from specllama.engine.helpers.tools import transports
from specllama.engine.helpers.tools.tools_jobs import MAX_MESSAGE
from specllama.engine.helpers.tools.transports import FLOOD, BoundedTransport


class Endless(httpx2.AsyncByteStream):
    """A body that never ends."""

    n_bytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.n_bytes += 1 << 20
            yield b"x" * (1 << 20)


def fetch(headers: dict[str, str], body: httpx2.AsyncByteStream) -> bytes:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["accept-encoding"] == "identity"
        return httpx2.Response(200, headers=headers, stream=body)

    async def main() -> bytes:
        transport = BoundedTransport(httpx2.MockTransport(answer))
        async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
            found = await client.get("http://a.example")
            return bytes(found.content)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "most"), [("application/json", MAX_MESSAGE), ("text/event-stream", FLOOD)]
)
def test_an_endless_answer_is_cut_off(kind: str, most: int) -> None:
    body = Endless()
    with pytest.raises(httpx2.ReadError, match=f"more than {most >> 20} MiB"):
        fetch({"content-type": kind}, body)
    assert body.n_bytes == most + (1 << 20)


def test_a_compressed_answer_is_refused() -> None:
    with pytest.raises(httpx2.DecodingError):
        fetch({"content-encoding": "gzip"}, Endless())


def test_only_known_variables_are_inherited() -> None:
    assert "PATH" in transports.INHERITED
    assert not [name for name in transports.INHERITED if name.startswith(("LLAMA", "PYTHON", "HF"))]
