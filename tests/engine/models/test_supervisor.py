"""The engine process from its supervisor's side: life, death and requests."""

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from specllama.engine.errors import EngineError
from specllama.engine.models import engine_process
from specllama.engine.models.engine_process import HEARTBEAT_TIMEOUT
from specllama.engine.models.lifecycle import ProcessLife, Restarts
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.engine.wire.commands import STACKS_SIGNAL, STUCK
from specllama.engine.wire.process import Child
from specllama.engine.wire.replies import Delta, Finished
from tests.support.engines import generate
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LONG = GenerationParams(n_predict=-1, ignore_eos=True, stream=True)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@asynccontextmanager
async def running(
    options: Options | None = None, restarts: Restarts | None = None
) -> AsyncIterator[Supervisor]:
    before = children()
    supervisor = Supervisor(options or model_options(), restarts=restarts)
    supervisor.start()
    try:
        await supervisor.loaded()
        yield supervisor
    finally:
        await supervisor.stop()
        assert not children() - before


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def until_idle(supervisor: Supervisor) -> None:
    engine = await supervisor.engine()
    while any(slot.is_processing for slot in await engine.slots()):
        await asyncio.sleep(0.005)


@in_loop
async def test_while_loading_requests_are_refused() -> None:
    before = children()
    supervisor = Supervisor(model_options())
    supervisor.start()
    with pytest.raises(EngineError, match="Loading model"):
        await supervisor.engine()
    await supervisor.stop()
    assert not children() - before


@in_loop
async def test_a_stream_equals_the_plain_answer() -> None:
    async with running() as supervisor:
        engine = await supervisor.engine()
        plain = GenerationParams(n_predict=40, seed=5, ignore_eos=True)
        streamed = GenerationParams(n_predict=40, seed=5, ignore_eos=True, stream=True)
        result = await generate(engine, ["def f("], plain).result()
        events = [event async for event in generate(engine, ["def f("], streamed)]
        assert "".join(event.text for event in events) == result.text
        assert [token for event in events for token in event.tokens] == result.tokens
        assert result.n_decoded == 40
        assert isinstance(events[-1], Finished)
        assert all(isinstance(event, Delta) for event in events[:-1])


@in_loop
async def test_a_killed_engine_fails_running_requests_only() -> None:
    async with running(model_options(parallel=1)) as supervisor:
        engine = await supervisor.engine()
        stream, waiting = generate(engine, ["a"], LONG), generate(engine, ["b"], LONG)
        await anext(stream)
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            [event async for event in stream]
        assert isinstance(await anext(waiting), Delta)
        waiting.cancel()
        result = await generate(engine, ["a"], GenerationParams(n_predict=3)).result()
        assert result.n_decoded <= 3
        assert await engine.detokenize([]) == ""
        await until_idle(supervisor)


@in_loop
async def test_a_cancelled_request_frees_its_slot() -> None:
    async with running(model_options(parallel=1)) as supervisor:
        engine = await supervisor.engine()
        stream, waiting = generate(engine, ["a"], LONG), generate(engine, ["b"], LONG)
        await anext(stream)
        waiting.cancel()
        stream.cancel()
        stream.cancel()
        await until_idle(supervisor)
        result = await generate(engine, ["c"], GenerationParams(n_predict=2)).result()
        assert result.id_slot == 0


@in_loop
async def test_a_request_cancelled_while_it_is_tokenized_never_runs() -> None:
    async with running() as supervisor:
        engine = await supervisor.engine()
        generate(engine, ["word " * 200_000], LONG).cancel()
        generate(engine, ["short"], LONG).cancel()
        result = await generate(engine, ["c"], GenerationParams(n_predict=2)).result()
        assert result.n_prompt == 1
        await until_idle(supervisor)


@in_loop
async def test_two_processes_report_the_same_blocks() -> None:
    prompt = "def function(self, value):\n" + "    self.value += value\n" * 20
    params = GenerationParams(n_predict=4, ignore_eos=True)
    async with running() as one, running(model_options(parallel=1)) as other:
        reports = []
        for supervisor in (one, other):
            engine = await supervisor.engine()
            assert (await engine.digest(100)).blocks == b""
            blocks = await engine.blocks([prompt], params, owner=7)
            result = await generate(engine, [prompt], params, owner=7).result()
            assert blocks.n_tokens == result.n_prompt
            digest = await engine.digest(100)
            assert digest.blocks.startswith(blocks.blocks)
            assert len(blocks.blocks) > 8
            assert (await engine.digest(1)).blocks == digest.blocks[:8]
            more = await engine.blocks([prompt, " more" * 100], params)
            assert more.blocks.startswith(blocks.blocks)
            private = await engine.blocks([prompt], params, owner=7, private=True)
            assert private.blocks[:8] not in digest.blocks
            assert (digest.load.n_slots, digest.load.n_busy) == (engine.info.n_slots, 0)
            reports.append((blocks, digest.blocks))
        assert reports[0] == reports[1]
        with pytest.raises(EngineError, match="not in the vocabulary"):
            await engine.blocks([10**6], params)


@in_loop
async def test_a_process_that_embeds_caches_no_text() -> None:
    async with running(model_options(embedding=True, pooling="mean")) as supervisor:
        engine = await supervisor.engine()
        vectors = [each async for each in engine.embed([["a text"]], normalize=2)]
        digest = await engine.digest(100)
        assert (digest.blocks, digest.load.n_slots) == (b"", engine.info.n_slots)
        assert digest.load.prompt_seconds > 0
        assert (digest.load.n_busy, digest.load.n_waiting, len(vectors)) == (0, 0, 1)
        with pytest.raises(EngineError, match="does not generate"):
            await engine.blocks(["a text"], GenerationParams())


@in_loop
async def test_stop_ends_running_requests_and_the_process() -> None:
    async with running() as supervisor:
        engine = await supervisor.engine()
        stream = generate(engine, ["a"], LONG)
        await anext(stream)
        await supervisor.stop()
        with pytest.raises(EngineError, match="shutting down"):
            [event async for event in stream]
        with pytest.raises(EngineError, match="shutting down"):
            await supervisor.engine()


@in_loop
async def test_stop_while_the_engine_restarts() -> None:
    async with running() as supervisor:
        for _ in range(2):
            assert supervisor.pid is not None
            os.kill(supervisor.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)
            if supervisor.state == "restarting" and supervisor.pid is None:
                break
            await supervisor.engine()


@contextmanager
def impatient_with(stopped: list[int]) -> Iterator[None]:
    """Processes whose ids are in `stopped` give no sign of life after a moment."""
    output_end = Child.output_end

    async def impatient(child: Child[Any], silence: float) -> None:
        """The limit is short for the process that was stopped: others may be slow."""
        assert silence == HEARTBEAT_TIMEOUT
        while True:
            try:
                return await output_end(child, 0.5)
            except TimeoutError:
                if child.pid in stopped:
                    raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "output_end", impatient)
        yield


@in_loop
async def test_a_stuck_engine_is_replaced() -> None:
    stopped: list[int] = []
    with impatient_with(stopped):
        async with running() as supervisor:
            pid = supervisor.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
            while supervisor.state == "ready":
                await asyncio.sleep(0.05)
            await supervisor.engine()
            assert supervisor.pid != pid


# ---- computations that never end ---------------------------------------------------------------


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Lets engine processes be those of `tests.support.stuck_engine`. Gives the file."""
    file = tmp_path / "stuck"
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)

    def get_stuck(how: str) -> Path:
        command = (sys.executable, "-P", "-m", "tests.support.stuck_engine", str(file), how)
        monkeypatch.setattr(engine_process, "engine_command", lambda: command)
        return file

    return get_stuck


def has_stacks(text: str) -> bool:
    return "Thread 0x" in text and " in decode_or_not" in text and " in _beat" in text


def test_a_computation_that_never_ends_is_noticed(
    stuck: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        file = stuck("once")
        async with running(model_options(parallel=1)) as supervisor:
            engine = await supervisor.engine()
            stream, waiting = generate(engine, ["a"], LONG), generate(engine, ["b"], LONG)
            await anext(stream)
            file.touch()
            with pytest.raises(EngineError, match="ended itself, as a computation did not end"):
                [event async for event in stream]
            assert isinstance(await anext(waiting), Delta)
            waiting.cancel()
            assert supervisor.exit_code == STUCK

    run()
    assert "a decode of 1 token has not ended for " in caplog.text
    assert " s (the limit is 0 s)" in caplog.text
    assert has_stacks(caplog.text)


@pytest.mark.skipif(STACKS_SIGNAL is None, reason="no signal writes the stacks")
def test_one_that_lets_no_other_thread_go_on_shows_its_stacks(
    stuck: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        file, stopped = stuck("holding the GIL"), list[int]()
        with impatient_with(stopped):
            async with running() as supervisor:
                engine = await supervisor.engine()
                stream = generate(engine, ["a"], LONG)
                await anext(stream)
                assert supervisor.pid is not None
                file.touch()
                while file.exists():
                    await asyncio.sleep(0.005)
                stopped.append(supervisor.pid)
                with pytest.raises(EngineError, match="was ended, as it gave no sign of life"):
                    [event async for event in stream]
                engine = await supervisor.engine()
                await generate(engine, ["a"], GenerationParams(n_predict=2)).result()

    run()
    assert has_stacks(caplog.text)


def test_a_request_that_no_process_comes_to_an_end_with_has_two_of_them(
    stuck: Callable[[str], Path],
) -> None:
    @in_loop
    async def run() -> None:
        file, restarts = stuck("always"), Recorded()
        async with running(model_options(warmup=False), restarts) as supervisor:
            engine = await supervisor.engine()
            file.touch()
            with pytest.raises(EngineError, match="a computation did not end"):
                await generate(engine, ["a"], LONG).result()
            file.unlink()
            engine = await supervisor.engine()
            await generate(engine, ["a"], GenerationParams(n_predict=2)).result()
            assert len(restarts.lives) == 2

    run()


@in_loop
async def test_a_model_that_cannot_be_loaded_is_a_failure_with_a_reason() -> None:
    async with running(model_options(model="/nowhere/model.gguf")) as supervisor:
        assert supervisor.state == "failed"
        assert "/nowhere/model.gguf" in supervisor.failure
        with pytest.raises(EngineError, match="could not be loaded"):
            await supervisor.engine()


# ---- how often it is replaced ----------------------------------------------------------------


class Recorded(Restarts):
    """Records its inputs and decisions. Every life counts as short (0 s), so that a busy machine
    doesn't change the decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[ProcessLife] = []
        self.waits: list[float | None] = []

    def after(self, life: ProcessLife) -> float | None:
        life = dataclasses.replace(life, seconds=0.0)
        self.lives.append(life)
        self.waits.append(super().after(life))
        return self.waits[-1]


def kill(supervisor: Supervisor, number: int = signal.SIGKILL) -> None:
    assert supervisor.pid is not None
    os.kill(supervisor.pid, number)


async def buried(supervisor: Supervisor, restarts: Recorded, n: int) -> None:
    """Wait for the end of process number `n`."""
    while len(restarts.waits) < n:
        await asyncio.sleep(0.005)


@in_loop
async def test_an_engine_that_served_comes_back_at_once_however_often() -> None:
    restarts = Recorded()
    async with running(restarts=restarts) as supervisor:
        for n in range(1, 7):
            engine = await supervisor.engine()
            await generate(engine, ["a"], GenerationParams(n_predict=2)).result()
            kill(supervisor)
            await buried(supervisor, restarts, n)
        await supervisor.engine()
        assert restarts.waits == [0.0] * 6
        assert all(life.ready and life.served for life in restarts.lives)


@in_loop
async def test_an_engine_that_never_serves_is_restarted_ever_more_slowly() -> None:
    restarts = Recorded()
    async with running(restarts=restarts) as supervisor:
        for n in range(1, 3):
            engine = await supervisor.engine()
            waiting = generate(engine, ["a"], LONG)
            await anext(waiting)
            kill(supervisor)
            with pytest.raises(EngineError, match="SIGKILL"):
                await waiting.result()
            await buried(supervisor, restarts, n)
        assert restarts.waits == [0.0, 1.0]
        assert not any(life.served for life in restarts.lives)


ADVICE = "built for another processor.*pip install.*llama-cpp-python=="


@in_loop
async def test_an_illegal_instruction_while_it_loads_is_final() -> None:
    restarts = Recorded()
    supervisor = Supervisor(model_options(), restarts=restarts)
    supervisor.start()
    while supervisor.pid is None:
        await asyncio.sleep(0.001)
    kill(supervisor, signal.SIGILL)
    await supervisor.loaded()
    assert supervisor.state == "failed"
    assert "was ended by SIGILL while it loaded the model: this llama.cpp" in supervisor.failure
    with pytest.raises(EngineError, match=ADVICE):
        await supervisor.engine()
    assert restarts.waits == [None]
    await supervisor.stop()


@in_loop
async def test_an_illegal_instruction_at_work_is_tried_once_more() -> None:
    restarts = Recorded()
    async with running(restarts=restarts) as supervisor:
        for n in range(1, 3):
            engine = await supervisor.engine()
            waiting = generate(engine, ["a"], LONG)
            await anext(waiting)
            kill(supervisor, signal.SIGILL)
            with pytest.raises(EngineError, match=ADVICE):
                await waiting.result()
            await buried(supervisor, restarts, n)
        assert restarts.waits == [0.0, None]
        with pytest.raises(EngineError, match=ADVICE):
            await supervisor.engine()
        assert supervisor.state == "failed"
        assert supervisor.pid is None
