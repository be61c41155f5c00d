"""A Redis server that is away, slow or something else. No Redis server is needed here."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.handlers.running.response_store import ResponseStore
from specllama.handlers.running.runtime import open_responses
from specllama.handlers.running.stores import UnavailableStoreError

redis_server = pytest.importorskip(
    "specllama.handlers.running.redis_server",
    reason="the library of the extra `redis` isn't installed",
    exc_type=ImportError,
)

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TINY = 0.05  # s
SECRET = "s3cret"


def answered(folder: Path, answer: Answer, work: Callable[[str], Awaitable[Any]]) -> str:
    """Returns the message of the error in `work`, which uses a server that answers so."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except OSError:
            pass  # the client has left
        finally:
            writer.close()

    async def run() -> str:
        path = folder / "fake.sock"
        async with await asyncio.start_unix_server(handle, path):
            with pytest.raises(UnavailableStoreError) as caught:
                await work(f"unix://:{SECRET}@{path}")
            return str(caught.value)

    return asyncio.run(run())


async def check(url: str) -> None:
    server = redis_server.RedisServer(url)
    try:
        await server.check()
    finally:
        await server.close()


def saying(data: bytes) -> Answer:
    """Answers each command with `data`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b":many\r\n",
        b"*-5\r\n",
        b"$1x\r\n",
        b"\0\xff\r\n" * 100,
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-NOAUTH Authentication required.\r\n",
    ],
)
def test_other_answers_than_those_of_redis(tmp_path: Path, data: bytes) -> None:
    message = answered(tmp_path, saying(data), check)
    assert "fake.sock: " in message
    assert SECRET not in message
    assert "\n" not in message


def test_a_message_repeats_no_arguments(tmp_path: Path) -> None:
    data = f"-ERR unknown command 'AUTH', with args beginning with: '{SECRET}'\r\n"
    message = answered(tmp_path, saying(data.encode()), check)
    assert "unknown command 'AUTH'" in message
    assert SECRET not in message


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass


async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never pauses for long, and never comes to an end."""
    await reader.read(1 << 16)
    writer.write(b"+")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0)


@pytest.mark.parametrize("answer", [silent, closed, endless])
def test_a_server_that_never_answers(
    tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "SECONDS" if answer is silent else "MAX_SECONDS", TINY)
    assert "fake.sock: " in answered(tmp_path, answer, check)


def test_a_server_that_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of a command on its way there."""
    monkeypatch.setattr(redis_server, "SECONDS", TINY)

    async def save(url: str) -> None:
        store: ResponseStore = open_responses(url)
        response: Any = {"id": "a", "previous_response_id": None, "output": [], "status": ""}
        item: Any = {"id": "i", "text": "x" * (32 << 20)}
        try:
            await store.save("", response, [item])
        finally:
            await store.close()

    assert "fake.sock: " in answered(tmp_path, deaf, save)
