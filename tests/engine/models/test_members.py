"""Models that a pool gets, renews and loses."""

import asyncio

import msgspec
import pytest

from specllama.engine.errors import EngineError
from specllama.engine.options import replaced
from tests.support.pool_stage import entry, in_loop, soon, stage


@in_loop
async def test_a_new_model_can_be_loaded() -> None:
    async with stage() as s:
        new = entry("e")
        s.pool.members.add(new)
        assert s.value("e") == "unloaded"
        s.catalog.replace([*s.catalog.entries.values(), new], "a")
        (await s.loaded("e")).release()
        assert s.value("e") == "loaded"


@in_loop
async def test_a_model_that_is_only_downloaded() -> None:
    async with stage(entry("a"), entry("far", remote=True)) as s:
        members = s.pool.members
        assert members.fetching() == []
        assert members.fetch("far") is s.pool.supervisor("far")
        assert members.fetching() == [s.catalog.entries["far"]]
        with pytest.raises(EngineError, match="'far' is being downloaded"):
            await s.lease("far")
        s.engine("far").downloaded()
        await soon()
        assert s.value("far") != "loaded"
        await members.remove("far")
        assert members.fetching() == []


@in_loop
async def test_other_options_unload_a_model_and_other_names_do_not() -> None:
    async with stage() as s:
        (await s.loaded("a")).release()
        old = s.catalog.entries["a"]
        named = msgspec.structs.replace(old, options=replaced(old.options, alias="x", tags=("y",)))
        await s.pool.members.renew(named)
        assert s.value("a") == "loaded"
        other = msgspec.structs.replace(old, options=replaced(old.options, ctx_size=77))
        await s.pool.members.renew(other)
        assert s.value("a") == "unloaded"
        (await s.loaded("a")).release()
        assert s.engine("a").options.engine.context.ctx_size == 77


@in_loop
async def test_a_model_is_removed_once_its_requests_have_ended() -> None:
    async with stage() as s:
        lease = await s.loaded("a")
        removing = asyncio.create_task(s.pool.members.remove("a"))
        await soon()
        assert not removing.done()
        assert not s.pool.unload_idle("a")
        lease.release()
        await removing
        assert not s.alive()
        assert not s.pool.unload_idle("a")
        with pytest.raises(EngineError, match="'a' was removed"):
            await s.lease("a")
        await s.pool.members.remove("a")  # does nothing
