"""Child processes: their output and their ends, without leftovers."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import psutil
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.wire import head_start
from specllama.engine.wire.commands import Command
from specllama.engine.wire.framing import FrameError, frame
from specllama.engine.wire.process import LOOKS, Child, ChildError

pytestmark = pytest.mark.slow

ANYTHING: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
posix = pytest.mark.skipif(os.name != "posix", reason="the exit status is a signal's there")

PROLOGUE = """
import os, signal, sys, time
import msgspec
from specllama.engine.system import leave
from specllama.engine.wire.link import do_jobs, take_over
SINK = os.dup(1)  # the number that the link gets, too
os.close(SINK)
link = take_over(msgspec.msgpack.Decoder())
"""
ECHO = """
while messages := link.receive():
    link.send(*messages)
leave(7)
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends by itself is not killed, however long its end takes."""
    monkeypatch.setattr("specllama.engine.wire.process.GRACE", SECONDS)


def child(program: str) -> Command:
    return (sys.executable, "-c", PROLOGUE + program)


def long(text: str) -> str:
    return text * 200_000  # longer than a pipe holds


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def loops() -> list[Any]:
    found: list[Any] = [asyncio.run]
    with suppress(ImportError):
        import uvloop

        found.append(uvloop.run)
    return found


@pytest.mark.parametrize("turns", [0, 100])
@pytest.mark.parametrize("run_loop", loops(), ids=lambda each: each.__module__)
def test_one_that_has_ended_is_asked(
    run_loop: Callable[[Coroutine[Any, Any, None]], None], turns: int
) -> None:
    """In whichever loop, and however long ago its end was noticed: uvloop's transports raise an
    error once they are closed."""

    async def run(is_over: Callable[[Child[Any]], bool]) -> None:
        ended = await Child.start(child(ECHO), ANYTHING, first=frame("first"))
        assert await ended.receive() == "first"
        psutil.Process(ended.pid).kill()
        while not is_over(ended):
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        ended.say(frame("again"))
        with pytest.raises(ChildError):
            await ended.ask(frame("again"), SECONDS)

    run_loop(run(lambda ended: ended.stdin.is_closing()))
    run_loop(run(lambda ended: not ended.is_alive))


def test_messages_of_any_length_come_back_in_order() -> None:
    async def run() -> None:
        echo = await Child.start(child(ECHO), ANYTHING, first=frame("first"))
        said = ["", "a", long("b"), "c", long("de")]
        for message in said:
            echo.stdin.write(frame(message))
        assert [await echo.receive() for _ in range(6)] == ["first", *said]
        assert echo.is_alive
        assert await echo.end(SECONDS)
        assert await echo.reap() == 7
        assert not echo.is_alive
        with pytest.raises(EOFError):
            await echo.receive()
        assert await echo.reap() == 7

    asyncio.run(run())


@posix
def test_one_with_a_head_start_is_taken() -> None:
    before = set(psutil.Process().children())
    head_start.begin(child(ECHO), frame("first"))

    async def run() -> None:
        [pid] = [process.pid for process in set(psutil.Process().children()) - before]
        echo = await Child.start(child(ECHO), ANYTHING, first=frame("first"))
        assert echo.pid == pid
        assert await echo.receive() == "first"
        assert await echo.ask(frame("second"), SECONDS) == "second"
        assert await echo.end(SECONDS)
        assert await echo.reap() == 7

    asyncio.run(run())


def test_listeners_receive_earlier_messages() -> None:
    async def run() -> None:
        echo = await Child.start(child(ECHO), ANYTHING, first=frame(1))
        received: list[int] = []
        assert await echo.receive() == 1
        echo.stdin.write(frame(2))
        await echo._pipes.changes.until(lambda: bool(echo._pipes.pending))
        echo.listen(received.append)
        assert received == [2]
        echo.stdin.write(frame(3))
        await echo.end(SECONDS)
        await echo.output_end(SECONDS)
        assert received == [2, 3]
        await echo.reap()

    asyncio.run(run())


def test_a_listener_that_fails_is_a_failure() -> None:
    async def run() -> None:
        echo = await Child.start(child(ECHO), ANYTHING, first=frame(1))
        echo.listen(lambda message: 1 / 0)  # type: ignore[arg-type]
        await echo.output_end(SECONDS)
        assert isinstance(echo.failure, ZeroDivisionError)
        await echo.reap()

    asyncio.run(run())


def test_silence_has_a_limit() -> None:
    async def run() -> None:
        echo = await Child.start(child(ECHO), ANYTHING)
        echo.listen(lambda message: None)
        with pytest.raises(TimeoutError):
            await echo.output_end(0.01)
        await echo.reap()

    asyncio.run(run())


@pytest.mark.parametrize("n_silent", [0, 1, LOOKS - 1])
def test_only_silence_without_a_break_counts(
    n_silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part in which this process was stopped is one like the others."""

    async def run() -> None:
        echo = await Child.start(child(ECHO), ANYTHING)
        parts = ([True] + [False] * n_silent) * 50 + [False] * LOOKS

        async def part(until: Coroutine[None, None, bool], seconds: float) -> None:
            until.close()
            echo._pipes.has_output = parts.pop(0)
            raise TimeoutError

        echo.listen(lambda message: None)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "wait_for", part)
            with pytest.raises(TimeoutError):
                await echo.output_end(3600.0)
        assert len(parts) == n_silent
        await echo.reap()

    asyncio.run(run())


def test_printed_text_is_no_message() -> None:
    class Log:
        said = b""
        closed = False

        def feed(self, data: bytes) -> None:
            self.said += data

        def close(self) -> None:
            self.closed = True

    async def run() -> None:
        log = Log()
        program = 'print("printed", flush=True); os.system("echo shouted"); link.send(1)' + ECHO
        talker = await Child.start(child(program), ANYTHING, log=log)
        assert await talker.receive() == 1
        await talker.end(SECONDS)
        assert await talker.reap() == 7
        assert log.closed
        assert sorted(log.said.split()) == [b"printed", b"shouted"]

    asyncio.run(run())


@posix
def test_signals_of_the_group_do_not_end_it() -> None:
    async def run() -> None:
        echo = await Child.start(child(ECHO), ANYTHING, first=frame(1))
        await echo.receive()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(echo.pid, number)
        assert await echo.ask(frame(2), SECONDS) == 2
        await echo.reap()

    asyncio.run(run())


# ---- ends ----------------------------------------------------------------------------------


def test_who_does_not_listen_is_killed() -> None:
    async def run() -> None:
        deaf = await Child.start(child("link.send(1)\nwhile True: time.sleep(9)"), ANYTHING)
        await deaf.receive()
        assert not await deaf.end(0.01)
        assert await deaf.reap() != 0

    asyncio.run(run())


@posix
def test_burying_does_not_hide_how_it_ended() -> None:
    async def run() -> None:
        for grace, code in ((SECONDS, 3), (0.0, -signal.SIGKILL)):
            # It closes its pipe, but still runs.
            program = "os.close(SINK)\nos.read(0, 1)\n"
            program += "leave(3)" if grace else "time.sleep(999)"
            ending = await Child.start(child(program), ANYTHING)
            with pytest.raises(EOFError):
                await ending.receive()
            ending.stdin.write(b"x")
            assert await ending.reap(grace) == code

    asyncio.run(run())


@posix
def test_killing_an_ended_process_keeps_its_exit_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Code that reads an exit status from the system takes it away from asyncio, which waits for
    it."""

    async def run() -> None:
        for _ in range(20):
            ending = await Child.start(
                (sys.executable, "-S", "-c", "raise SystemExit(7)"), ANYTHING
            )
            with suppress(ChildProcessError):  # asyncio has seen it end
                os.waitid(os.P_PID, ending.pid, os.WEXITED | os.WNOWAIT)
            ending.kill()
            assert await ending.reap() == 7

    asyncio.run(run())
    assert caplog.messages == []


def test_burying_waits_for_one_that_is_asked_to_end() -> None:
    async def run() -> None:
        program = "link.send(1)\nlink.receive()\nos.close(SINK)\ntime.sleep(0.1)\nleave(5)"
        ending = await Child.start(child(program), ANYTHING)
        await ending.receive()
        end = asyncio.create_task(ending.end(SECONDS))
        with pytest.raises(EOFError):
            await ending.receive()
        assert await ending.reap() == 5
        assert await end

    asyncio.run(run())


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(Child.start(("/nowhere/python",), ANYTHING))


def test_nonsense() -> None:
    async def run(program: str, limit: int) -> None:
        mad = await Child.start(child(program), ANYTHING, limit=limit)
        with pytest.raises(FrameError):
            await mad.receive()
        await mad.reap()

    asyncio.run(run('link.write(b"\\x01\\0\\0\\0\\xc1")' + ECHO, 100))
    asyncio.run(run('link.send("x" * 100)' + ECHO, 100))


# ---- jobs ----------------------------------------------------------------------------------

JOBS = """
from specllama.engine.wire.framing import frame
def reply(job):
    if job == "loop":
        while True: time.sleep(9)
    if job == "die":
        leave(9)
    if job == "nonsense":
        return b"\\x01\\0\\0\\0\\xc1"
    if job == "memory":
        try:
            return frame(len(bytes(1 << 33)))
        except MemoryError:
            return frame("no room")
    return frame(job)
do_jobs(link, reply, memory=1 << 30, seconds=LIMIT)
leave()
"""


def jobs(seconds: float = SECONDS) -> Command:
    return child(JOBS.replace("LIMIT", str(seconds)))


def test_one_job_after_the_other() -> None:
    async def run() -> None:
        worker = await Child.start_for_jobs(jobs(), ANYTHING)
        for job in ("a", long("b"), {"c": [1]}):
            assert await worker.ask(frame(job), SECONDS) == job
        assert await worker.end(SECONDS)
        assert await worker.reap() == 0

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="others may refuse the limit")
def test_a_job_that_needs_too_much_memory() -> None:
    async def run() -> None:
        worker = await Child.start_for_jobs(jobs(), ANYTHING)
        assert await worker.ask(frame("memory"), SECONDS) == "no room"
        await worker.reap()

    asyncio.run(run())


def test_jobs_that_take_too_long_or_end_the_process(request: pytest.FixtureRequest) -> None:
    async def run(job: str, seconds: float) -> int | None:
        worker = await Child.start_for_jobs(jobs(), ANYTHING)
        try:
            await worker.ask(frame(job), seconds)
        except ChildError as error:
            return error.code
        except TimeoutError:
            return None
        finally:
            assert not worker.is_alive
        raise AssertionError

    assert asyncio.run(run("loop", 0.01)) is None
    assert asyncio.run(run("nonsense", SECONDS)) != 0
    request.getfixturevalue("patient")
    assert asyncio.run(run("die", SECONDS)) == 9


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarm")
@pytest.mark.usefixtures("patient")
def test_an_alarm_ends_an_abandoned_job() -> None:
    async def run() -> int:
        worker = await Child.start_for_jobs(jobs(0.01), ANYTHING)
        with pytest.raises(ChildError) as error:
            await worker.ask(frame("loop"), SECONDS)
        return error.value.code

    assert asyncio.run(run()) == -signal.SIGALRM


@pytest.mark.usefixtures("patient")
def test_one_that_never_gets_ready() -> None:
    with pytest.raises(ChildError) as error:
        asyncio.run(Child.start_for_jobs(child("leave(4)"), ANYTHING))
    assert error.value.code == 4
