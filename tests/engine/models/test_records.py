"""Models that can't be loaded."""

import asyncio

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.options import Options
from specllama.engine.wire.replies import ModelInfo
from tests.support.engines import PaperSupervisor
from tests.support.pool_stage import in_loop, soon, stage


@in_loop
async def test_a_failed_model_has_a_reason_and_disturbs_no_other() -> None:
    async with stage() as s:
        a = await s.loaded("a")
        tasks = [s.lease("b"), s.lease("b")]
        await soon()
        s.engine("b").fail("out of memory", 137)
        for task in tasks:
            with pytest.raises(EngineError, match=r"out of memory \(exit code 137\)") as failed:
                await task
            assert failed.value.info.type == "unavailable_error"
        await soon()
        status = s.pool.status("b")
        assert (status.value, status.failed, status.exit_code) == ("unloaded", True, 137)
        assert s.value("a") == "loaded"
        a.release()


@in_loop
async def test_the_next_request_tries_again_but_not_endlessly() -> None:
    async with stage() as s:
        for _ in range(2):
            task = s.lease("a")
            await soon()
            s.engine("a").fail("no such file")
            await asyncio.wait({task})
            task.exception()
            await soon()
        with pytest.raises(EngineError, match="no such file"):
            await s.lease("a")
        assert len(PaperSupervisor.all) == 2
        await s.pool.load("a")  # a load by hand doesn't wait
        await soon()
        s.engine("a").become_ready()
        await soon()
        assert not s.pool.status("a").failed
        (await s.lease("a")).release()


@in_loop
async def test_a_failure_frees_the_place_for_the_next() -> None:
    async with stage(models_max=1) as s:
        a, b = s.lease("a"), s.lease("b")
        await soon()
        s.engine("a").fail("broken")
        await asyncio.wait({a})
        a.exception()
        await soon()
        s.engine("b").become_ready()
        (await b).release()


class Refusal:
    """Examines models when the test lets it."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        self.may_end = asyncio.Event()
        self._error = error

    async def __call__(self, options: Options, info: ModelInfo) -> ModelInfo:
        await self.may_end.wait()
        if self._error is not None:
            raise self._error("the template is none")
        raise EngineError.of("server_error", "the template is none")


@in_loop
async def test_a_loaded_model_that_is_refused_has_failed() -> None:
    """Whatever the result of the examination: otherwise the model would seem to load for ever."""
    for error in (None, RuntimeError):
        await refused(error)


async def refused(error: type[Exception] | None) -> None:
    async with stage() as s:
        task = s.lease("a")
        await soon()
        examine = s.engine("a")._examine = Refusal(error)
        s.engine("a").become_ready()
        await soon()
        assert (s.value("a"), s.alive()) == ("loading", {"a"})
        examine.may_end.set()
        with pytest.raises(EngineError, match=r"could not be loaded: the template is none$"):
            await task
        await soon()
        status = s.pool.status("a")
        assert (status.value, status.failed) == ("unloaded", True)
        assert (status.failure, status.exit_code) == ("the template is none", None)
        assert not s.alive()


@in_loop
async def test_a_process_may_end_while_its_model_is_examined() -> None:
    async with stage() as s:
        for crashes in (True, False):
            task = s.lease("a")
            await soon()
            s.engine("a")._examine = Refusal()
            s.engine("a").become_ready()
            await soon()
            s.engine("a").crash() if crashes else s.pool.begin_unload("a")
            with pytest.raises(EngineError):
                await task
            await soon()
            assert s.value("a") == "unloaded"
