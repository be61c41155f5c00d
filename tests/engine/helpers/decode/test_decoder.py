"""The processes that decode: hostile files end at most the process that works on them."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.helpers.decode.decode_jobs import Decode, Decoded
from specllama.engine.helpers.decode.decoder import TIME_LIMIT, Decoders
from specllama.engine.helpers.pool import PROCESSES
from specllama.engine.wire.media import Format
from tests.support.media_files import FILES, IMAGES, SOUNDS, png_of_size, wav_file

pytestmark = pytest.mark.slow


def job(data: bytes, format: str, max_pixels: int = 1 << 20, seconds: float = 60) -> Decode:
    return Decode(data, format, max_pixels, 16000, seconds)  # type: ignore[arg-type]


PLAIN = job(IMAGES["PNG"], "PNG")


def run(use: Callable[[Decoders], Awaitable[None]], **limits: float) -> None:
    async def main() -> None:
        decoders = Decoders(**limits)  # type: ignore[arg-type]
        try:
            await use(decoders)
        finally:
            pids = decoders.pids
            await decoders.stop()
            assert not any(psutil.pid_exists(pid) for pid in pids)

    asyncio.run(main())


async def outcome(decoders: Decoders, wanted: Decode) -> Decoded | str:
    """Returns the result, or the message of an error, which is the request's own."""
    try:
        return await decoders.decode(wanted)
    except EngineError as e:
        if e.info.type != "invalid_request_error":
            raise
        return e.info.message


def test_all_formats_by_one_process() -> None:
    async def use(decoders: Decoders) -> None:
        for format, data in FILES.items():
            assert isinstance(await decoders.decode(job(data, format)), Decoded)
        assert len(decoders.pids) == 1

    run(use)


def mutated(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    found = bytearray(data)
    for _ in range(chance.choice((1, 2, 5, 20))):
        at = chance.randrange(len(found))
        match chance.randrange(5):
            case 0:
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                found[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del found[at : at + chance.randrange(1, 9)]
            case 3:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                found = found[: at + 1]
        if not found:
            return b""
    return bytes(found)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(sorted(FILES)), st.integers(0, 2**32))
def test_damaged_files_do_no_harm(format: Format, seed: int) -> None:
    async def use(decoders: Decoders) -> None:
        for n in range(20):
            found = await outcome(decoders, job(mutated(FILES[format], seed + n), format))
            assert isinstance(found, Decoded) or found
            if isinstance(found, Decoded) and format in IMAGES:
                assert len(found.data) == found.width * found.height * 3 > 0
        assert await decoders.decode(PLAIN) == await decoders.decode(PLAIN)

    run(use)


def test_a_process_that_dies_is_replaced() -> None:
    async def use(decoders: Decoders) -> None:
        expected = await decoders.decode(PLAIN)
        [pid] = decoders.pids
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(decoders.decode(PLAIN))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert await waiting == expected
        assert decoders.pids != [pid]

    run(use)


def test_a_file_that_ends_every_process_is_an_error() -> None:
    """Here the memory is too little even to read the job."""

    async def use(decoders: Decoders) -> None:
        good = await decoders.decode(PLAIN)
        found = await outcome(decoders, job(bytes(200 << 20), "BMP"))
        assert isinstance(found, str)
        assert await decoders.decode(PLAIN) == good

    run(use, processes=1, memory_limit=700 << 20)


def test_too_much_memory() -> None:
    async def use(decoders: Decoders) -> None:
        found = await outcome(decoders, job(png_of_size(20_000, 20_000), "PNG", 1 << 30))
        assert found == "it needs too much memory"
        assert isinstance(await decoders.decode(PLAIN), Decoded)

    run(use, memory_limit=1 << 30)


def test_too_much_of_the_processors_time() -> None:
    """A little file that is very long: the limit of the work holds, not that of the length."""

    async def use(decoders: Decoders) -> None:
        long = job(wav_file([0.1] * 40_000, rate=1), "WAV", seconds=1e9)
        assert await outcome(decoders, long) == "decoding it takes too long"
        assert decoders.pids == []

    run(use, processor_limit=0.01)


def test_a_process_that_hangs_is_killed() -> None:
    async def use(decoders: Decoders) -> None:
        await decoders.decode(PLAIN)
        [pid] = decoders.pids
        os.kill(pid, signal.SIGSTOP)
        decoders._time_limit = 0.1
        assert await outcome(decoders, PLAIN) == "decoding it takes too long"
        await asyncio.gather(*decoders._pool._ending)
        assert not psutil.pid_exists(pid)
        decoders._time_limit = TIME_LIMIT
        assert isinstance(await decoders.decode(PLAIN), Decoded)

    run(use)


def test_cancelling_ends_the_work() -> None:
    async def use(decoders: Decoders) -> None:
        await decoders.decode(PLAIN)
        [pid] = decoders.pids
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(decoders.decode(PLAIN))
        while not decoders._pool._busy:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert pid not in decoders.pids
        assert isinstance(await decoders.decode(PLAIN), Decoded)
        await asyncio.gather(*decoders._pool._ending)
        assert not psutil.pid_exists(pid)

    run(use)


def test_many_at_once() -> None:
    async def use(decoders: Decoders) -> None:
        jobs = [job(data, format) for format, data in FILES.items()] * 5
        found = await asyncio.gather(*map(decoders.decode, jobs))
        assert found == found[: len(FILES)] * 5
        assert len(decoders.pids) <= PROCESSES

    run(use)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
def test_the_process_has_nothing_open_but_its_pipes() -> None:
    async def use(decoders: Decoders) -> None:
        for format in (*IMAGES, *SOUNDS):
            await decoders.decode(job(FILES[format], format))
        [pid] = decoders.pids
        limit = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)
        opened = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
        assert len(opened) == 4
        assert limit == (max(opened) + 1,) * 2

    run(use)


def test_the_process_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")

    async def use(decoders: Decoders) -> None:
        await decoders.decode(PLAIN)
        known = psutil.Process(decoders.pids[0]).environ()
        assert "secret" not in known.values()
        assert known["PATH"] == os.environ["PATH"]

    run(use)


def test_after_the_end_there_are_no_more() -> None:
    async def use(decoders: Decoders) -> None:
        await decoders.stop()
        with pytest.raises(EngineError) as caught:
            await decoders.decode(PLAIN)
        assert caught.value.info.type == "unavailable_error"

    run(use)
