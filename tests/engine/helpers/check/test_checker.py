"""Processes that check bodies: their verdicts, and what becomes of bodies that mean harm."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import EngineError
from specllama.engine.helpers.check.check_jobs import BodyVerdict, CheckJob
from specllama.engine.helpers.check.checker import Checker
from specllama.engine.helpers.pool import PROCESSES
from specllama.engine.wire.framing import frame

pytestmark = pytest.mark.slow

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": "integer", "nullable": True}, "b": {"type": "string"}},
}
OTHER: dict[str, Any] = {"type": "array", "items": {"type": "number"}}


@asynccontextmanager
async def checking(**options: Any) -> AsyncIterator[Checker]:
    checker = Checker(**options)
    try:
        yield checker
    finally:
        await checker.stop()
        assert checker.pids == []


async def until_there_are(checker: Checker, n: int) -> None:
    while len(checker.pids) != n:
        await asyncio.sleep(0.01)


def test_verdicts() -> None:
    async def run() -> None:
        async with checking() as checker:
            assert checker.pids == []
            assert await checker.check(SCHEMA, b'{"a": 1}') == BodyVerdict()
            assert await checker.check(SCHEMA, b'{"a": null}') == BodyVerdict()
            assert await checker.check(OTHER, b"[1, 2.5]") == BodyVerdict()
            wrong = await checker.check(OTHER, b'[1, "\\u00e9"]')
            assert wrong == BodyVerdict(
                '[1]: "é" is not a number', "[1]: the value is not a number"
            )
            broken = await checker.check(SCHEMA, b'{"a": 1')
            assert broken.fault.startswith("the body is not valid JSON: ")
            assert "UTF-8" in (await checker.check(SCHEMA, b'{"b": "\xff"}')).fault
            assert len(checker.pids) == 1

    asyncio.run(run())


def test_as_many_processes_as_there_are_bodies_up_to_a_bound() -> None:
    async def run() -> None:
        async with checking() as checker:
            work = (checker.check(SCHEMA, b'{"a": %d}' % n) for n in range(3 * PROCESSES))
            assert set(await asyncio.gather(*work)) == {BodyVerdict()}
            assert len(checker.pids) == PROCESSES

    asyncio.run(run())


def test_a_process_that_was_killed_is_replaced() -> None:
    async def run() -> None:
        async with checking() as checker:
            await checker.check(SCHEMA, b'{"a": 1}')
            [before] = checker.pids
            os.kill(before, signal.SIGKILL)
            assert (await checker.check(SCHEMA, b'{"a": ""}')).fault
            assert before not in checker.pids

    asyncio.run(run())


def test_processes_without_work_are_ended() -> None:
    async def run() -> None:
        async with checking(idle=0.0) as checker:
            await checker.check(SCHEMA, b'{"a": 1}')
            await until_there_are(checker, 0)
            assert await checker.check(SCHEMA, b'{"a": 1}') == BodyVerdict()

    asyncio.run(run())


def test_a_client_that_leaves_leaves_the_process_fit() -> None:
    async def run() -> None:
        async with checking() as checker:
            await checker.check(SCHEMA, b'{"a": 1}')
            before = checker.pids
            left = asyncio.create_task(checker.check(SCHEMA, b'{"a": "%s"}' % (b"x" * 10**6)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            left.cancel()
            assert await checker.check(OTHER, b"[1]") == BodyVerdict()
            assert set(before) <= set(checker.pids)

    asyncio.run(run())


def test_a_body_that_takes_too_much_memory_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specllama.engine.helpers.check.checker.MEMORY", 256 << 20)

    async def run() -> None:
        async with checking(max_body=1 << 20, time_limit=SECONDS) as checker:
            verdict = await checker.check(OTHER, b"[%s1]" % (b"[]," * (8 << 20)))
            assert verdict == BodyVerdict(exhausted=True)
            assert await checker.check(OTHER, b"[1]") == BodyVerdict()

    asyncio.run(run())


def test_a_body_that_takes_too_long_is_refused_alone() -> None:
    async def run() -> None:
        async with checking(time_limit=SECONDS) as checker:
            await checker.check(OTHER, b"[1]")
            os.kill(checker.pids[0], signal.SIGSTOP)
            checker._time_limit = 0.1
            with pytest.raises(EngineError) as error:
                await checker.check(OTHER, b"[1]")
            checker._time_limit = SECONDS
            assert error.value.info.type == "invalid_request_error"
            assert await checker.check(OTHER, b"[1]") == BodyVerdict()

    asyncio.run(run())


def test_nothing_is_checked_after_the_end() -> None:
    async def run() -> None:
        checker = Checker()
        await checker.stop()
        with pytest.raises(EngineError) as error:
            await checker.check(SCHEMA, b"{}")
        assert error.value.info.type == "unavailable_error"

    asyncio.run(run())


def test_a_process_learns_a_schema_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[CheckJob] = []

    def seen(job: CheckJob) -> bytes:
        jobs.append(job)
        return frame(job)

    monkeypatch.setattr("specllama.engine.helpers.check.checker.frame", seen)

    async def run() -> None:
        async with checking() as checker:
            for schema in (SCHEMA, OTHER, SCHEMA, OTHER):
                await checker.check(schema, b"[1]")

    asyncio.run(run())
    assert [bool(job.source) for job in jobs] == [True, True, False, False]
