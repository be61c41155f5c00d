"""Models that are downloaded before they are loaded."""

import pytest

from specllama.engine.errors import EngineError
from tests.support.pool_stage import entry, in_loop, soon, stage


@in_loop
async def test_a_model_that_is_downloaded_needs_no_place_for_it() -> None:
    async with stage(entry("a"), entry("far", remote=True), models_max=1) as s:
        a = await s.loaded("a")
        task = s.lease("far")
        await soon()
        assert s.value("far") == "downloading"
        (await s.lease("a")).release()
        s.engine("far").download(50, 100)
        assert s.pool.status("far").progress == 0.5
        s.engine("far").downloaded()
        await soon()
        assert s.alive() == {"a"}
        a.release()
        await soon()
        assert s.alive() == {"far"}
        s.engine("far").become_ready()
        (await task).release()


@in_loop
async def test_a_download_can_fail_or_be_cancelled() -> None:
    async with stage(entry("far", remote=True)) as s:
        task = s.lease("far")
        await soon()
        s.engine("far").fail_download("no such repository")
        with pytest.raises(EngineError, match=r"no such repository$"):
            await task
        await soon()
        assert s.pool.status("far").failed
        task = s.lease("far")
        await soon()
        await s.pool.unload("far")
        with pytest.raises(EngineError, match="was unloaded"):
            await task
