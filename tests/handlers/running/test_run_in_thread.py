"""Conversions of large bodies run in one thread, outside the event loop."""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from specllama.engine.errors import EngineError, invalid_request
from specllama.handlers.http.bodies import LARGE
from specllama.handlers.running.run_in_thread import run_in_thread
from tests.support.http_support import request_with

pytestmark = pytest.mark.slow


def where(*_: Any, **__: Any) -> threading.Thread:
    return threading.current_thread()


def test_small_bodies_are_converted_at_once() -> None:
    with request_with(LARGE):
        assert asyncio.run(run_in_thread(where, 1, a=2)) is threading.current_thread()


def test_large_bodies_are_converted_in_one_thread() -> None:
    async def several() -> set[threading.Thread]:
        return set(await asyncio.gather(*(run_in_thread(where) for _ in range(9))))

    with request_with(LARGE + 1):
        [thread] = asyncio.run(several())
    assert thread is not threading.current_thread()


def test_others_go_on_meanwhile() -> None:
    """A conversion that waited for the loop to turn would never end if it held it."""
    turned = threading.Event()

    async def run() -> str:
        asyncio.get_running_loop().call_later(0, turned.set)
        return await run_in_thread(lambda: (turned.wait() and "done") or "")

    with request_with(LARGE + 1):
        assert asyncio.run(run()) == "done"


def test_errors_and_the_request_are_those_of_the_caller() -> None:
    variable = ContextVar("variable", default=0)

    async def run() -> int:
        variable.set(7)
        with pytest.raises(EngineError, match="no"):
            await run_in_thread(_refuse)
        return await run_in_thread(variable.get)

    with request_with(LARGE + 1):
        assert asyncio.run(run()) == 7


def _refuse() -> None:
    raise invalid_request("no")


def test_cancelled_work_is_not_begun() -> None:
    done: list[int] = []

    async def run() -> None:
        release = threading.Event()
        first = asyncio.create_task(run_in_thread(release.wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(run_in_thread(done.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        release.set()
        await first
        await run_in_thread(done.append, 2)

    with request_with(LARGE + 1):
        asyncio.run(run())
    assert done == [2]
