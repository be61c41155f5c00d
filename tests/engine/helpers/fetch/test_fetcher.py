"""The process that fetches: many jobs at a time, each with its own end."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import EngineError
from specllama.engine.helpers.fetch.fetch_jobs import Rules
from specllama.engine.helpers.fetch.fetcher import Fetcher

pytestmark = pytest.mark.slow

RULES = Rules(urls=True, private=True, max_bytes=1 << 20, seconds=SECONDS)
BODY = b"x" * 100_000


class Site:
    """A server whose paths under /slow are answered when `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.slow = 0  # requests that wait
        self.gone = asyncio.Event()  # a client of a slow one has left
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /slow"):
            self.slow += 1
            left = asyncio.ensure_future(reader.read())
            released = asyncio.ensure_future(self.release.wait())
            await asyncio.wait((left, released), return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                self.gone.set()
            left.cancel()
            released.cancel()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        writer.close()


def run(use: Callable[[Fetcher, Site], Awaitable[None]]) -> None:
    async def main() -> None:
        fetcher, site = Fetcher(), Site()
        server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
        site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            await use(fetcher, site)
        finally:
            site.release.set()
            pids = fetcher.pids
            await fetcher.stop()
            server.close()
            assert not any(psutil.pid_exists(pid) for pid in pids)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_slow_fetches_delay_no_other() -> None:
    async def use(fetcher: Fetcher, site: Site) -> None:
        slow = [asyncio.create_task(fetcher.fetch(f"{site.url}/slow", RULES)) for _ in range(5)]
        await until(lambda: site.slow == 5)
        assert await fetcher.fetch(f"{site.url}/x", RULES) == BODY
        assert not any(task.done() for task in slow)
        site.release.set()
        assert await asyncio.gather(*slow) == [BODY] * 5
        assert len(fetcher.pids) == 1

    run(use)


def test_cancelling_ends_the_connection() -> None:
    async def use(fetcher: Fetcher, site: Site) -> None:
        task = asyncio.create_task(fetcher.fetch(f"{site.url}/slow", RULES))
        await until(lambda: site.slow == 1)
        task.cancel()
        await site.gone.wait()
        assert task.cancelled()
        assert await fetcher.fetch(f"{site.url}/x", RULES) == BODY

    run(use)


def test_a_process_that_dies_is_replaced() -> None:
    async def use(fetcher: Fetcher, site: Site) -> None:
        task = asyncio.create_task(fetcher.fetch(f"{site.url}/slow", RULES))
        await until(lambda: site.slow == 1)
        os.kill(fetcher.pids[0], signal.SIGKILL)
        with pytest.raises(EngineError) as caught:
            await task
        assert caught.value.info.type == "server_error"
        assert await fetcher.fetch(f"{site.url}/x", RULES) == BODY

    run(use)


@pytest.mark.parametrize(
    ("url", "rules", "reason"),
    [
        ("{}/x", Rules(urls=True, max_bytes=9, seconds=SECONDS), "address that is not public"),
        (
            "{}/x",
            Rules(private=True, max_bytes=9, seconds=SECONDS),
            "fetching URLs is disabled",
        ),
        ("file://x", RULES, "reading files is disabled"),
        (
            "{}/x",
            Rules(urls=True, private=True, max_bytes=9, seconds=SECONDS),
            "more than the 9 bytes",
        ),
        ("{}/slow", Rules(urls=True, private=True, max_bytes=9, seconds=0.2), "more than 0.2 s"),
        ("{}/\ud800", RULES, "its URL is not valid"),
    ],
)
def test_impossible_values(url: str, rules: Rules, reason: str) -> None:
    async def use(fetcher: Fetcher, site: Site) -> None:
        with pytest.raises(EngineError, match=reason) as caught:
            await fetcher.fetch(url.format(site.url), rules)
        assert caught.value.info.type == "invalid_request_error"

    run(use)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(BODY)
    rules = Rules(directory=str(tmp_path), max_bytes=len(BODY), seconds=SECONDS)

    async def use(fetcher: Fetcher, site: Site) -> None:
        assert await fetcher.fetch("file://a.png", rules) == BODY
        assert await fetcher.fetch("FILE:///a.png", rules) == BODY
        with pytest.raises(EngineError, match="not allowed"):
            await fetcher.fetch("file://../a.png", rules)

    run(use)


def test_after_the_end_there_are_no_more() -> None:
    async def use(fetcher: Fetcher, site: Site) -> None:
        task = asyncio.create_task(fetcher.fetch(f"{site.url}/slow", RULES))
        await until(lambda: site.slow == 1)
        await fetcher.stop()
        for waiting in (task, fetcher.fetch(f"{site.url}/x", RULES)):
            with pytest.raises(EngineError) as caught:
                await waiting
            assert caught.value.info.type == "unavailable_error"

    run(use)
