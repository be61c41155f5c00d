"""Models make room for each other by their memory: --models-memory, --models-memory-margin."""

import asyncio

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.wire.devices import CPU, DeviceUse
from specllama.engine.wire.replies import Heartbeat, Ready
from tests.support.factories import model_info
from tests.support.pool_stage import PaperMeter, entry, in_loop, soon, stage

SIZES = {"a": {"host": 40}, "b": {"host": 40}, "c": {"host": 70}, "d": {"host": 30, "GPU0": 50}}
MIB = 1 << 20


@in_loop
async def test_models_stay_as_long_as_they_fit() -> None:
    async with stage(meter=PaperMeter("100", SIZES)) as s:
        (await s.loaded("a")).release()
        (await s.loaded("b")).release()
        assert s.alive() == {"a", "b"}
        (await s.loaded("d")).release()
        assert s.alive() == {"b", "d"}, "the least recently used one has made room"
        (await s.loaded("c")).release()
        assert s.alive() == {"c", "d"}, "only as many as necessary"


@in_loop
async def test_places_count_as_well() -> None:
    async with stage(meter=PaperMeter("100", SIZES), models_max=1) as s:
        (await s.loaded("a")).release()
        (await s.loaded("b")).release()
        assert s.alive() == {"b"}


@in_loop
async def test_the_margin_is_of_the_free_memory_at_the_start() -> None:
    async with stage(meter=PaperMeter("", SIZES, margin=820)) as s:
        (await s.loaded("a")).release()
        (await s.loaded("b")).release()
        assert s.alive() == {"a", "b"}, "80 MiB are free beyond the margin"
        (await s.loaded("d")).release()
        assert s.alive() == {"b", "d"}


@in_loop
async def test_a_busy_model_is_not_unloaded() -> None:
    async with stage(meter=PaperMeter("100", SIZES)) as s:
        a = await s.loaded("a")
        waiting = s.lease("c")
        await soon()
        assert (s.alive(), s.pool.status("c").waiting) == ({"a"}, True)
        a.release()
        await soon()
        s.engine("c").become_ready()
        (await waiting).release()


@in_loop
async def test_a_model_that_never_fits_is_refused_at_once() -> None:
    sizes = {**SIZES, "c": {"host": 120}}
    async with stage(meter=PaperMeter("100", sizes)) as s:
        (await s.loaded("a")).release()
        with pytest.raises(EngineError) as caught:
            await s.lease("c")
        info = caught.value.info
        assert (info.type, info.final) == ("unavailable_error", True)
        for part in ("'c'", "120 MiB of the host's memory", "may take 100 MiB", "--ctx-size",
                     "--cache-type-k q8_0", "a higher --models-memory"):  # fmt: skip
            assert part in info.message
        assert s.alive() == {"a"}, "no other model has made room"
        assert s.pool.status("c").failed
        assert s.pool.status("c").failure == info.message


@in_loop
async def test_what_would_help_depends_on_the_device() -> None:
    sizes = {"d": {"host": 10, "GPU0": 150}}
    async with stage(entry("d"), meter=PaperMeter("gpu=100", sizes)) as s:
        with pytest.raises(EngineError, match=r"150 MiB on GPU0.* a lower --n-gpu-layers"):
            await s.lease("d")


@in_loop
async def test_a_pinned_model_stays() -> None:
    entries = [entry("a", pin=True), entry("b"), entry("c")]
    async with stage(*entries, meter=PaperMeter("100", SIZES)) as s:
        (await s.loaded("a")).release()
        with pytest.raises(EngineError, match="may take 60 MiB"):
            await s.lease("c")
        (await s.loaded("b")).release()
        await s.pool.unload("a")
        (await s.loaded("c")).release()
        assert s.alive() == {"c"}


@in_loop
async def test_pinned_models_may_have_all_places() -> None:
    async with stage(entry("a", pin=True), entry("b"), models_max=1) as s:
        (await s.loaded("a")).release()
        with pytest.raises(EngineError, match="--models-max"):
            await s.lease("b")


@in_loop
async def test_a_model_that_can_not_be_measured_is_loaded() -> None:
    async with stage(meter=PaperMeter("100", {})) as s:
        (await s.loaded("a")).release()
        assert s.alive() == {"a"}


@in_loop
async def test_a_loaded_model_counts_with_what_it_takes() -> None:
    """It turns out to be larger than it was measured to be."""
    async with stage(meter=PaperMeter("100", SIZES)) as s:
        assert s.pool.memory("a").need == {}
        task = s.lease("a")
        await soon()
        assert s.engine("a").measured is not None
        use = DeviceUse(name="GPU0", model=7)
        s.engine("a").say(Ready(model_info(devices=[use, DeviceUse(name=CPU, model=5)])))
        await soon()
        s.engine("a").say(Heartbeat(65 * MIB))
        (await task).release()
        memory = s.pool.memory("a")
        assert memory.need == {"host": 40 * MIB}
        assert memory.use == {"host": 65 * MIB, "GPU0": 7}
        (await s.loaded("b")).release()
        assert s.alive() == {"b"}


@in_loop
async def test_others_make_room_for_a_model_that_grows() -> None:
    async with stage(meter=PaperMeter("100", SIZES)) as s:
        (await s.loaded("b")).release()
        a = await s.loaded("a")
        s.engine("a").say(Heartbeat(65 * MIB))
        a.release()
        await soon()
        assert s.alive() == {"a"}


@in_loop
async def test_a_model_is_loaded_with_the_context_that_was_measured() -> None:
    async with stage(meter=PaperMeter("100", SIZES)) as s:
        (await s.loaded("a")).release()
        assert s.engine("a").options.engine.context.ctx_size == -1
        started_with = s.engine("a").started_with
        assert started_with is not None
        assert started_with.context.ctx_size == 4321


@in_loop
async def test_models_that_do_not_fit_at_the_start_are_left_out() -> None:
    entries = [entry(name, startup=name in "abc") for name in "abcd"]
    async with stage(*entries, meter=PaperMeter("100", SIZES)) as s:
        await soon()
        assert s.alive() == {"a", "b"}
        assert s.value("c") == "unloaded"


@in_loop
async def test_a_sleeping_model_takes_no_memory() -> None:
    async with stage(meter=PaperMeter("100", SIZES)) as s:
        (await s.loaded("a")).release()
        await s.engine("a").fall_asleep()
        assert s.pool.memory("a").use == {}
        (await s.loaded("c")).release()
        assert s.value("a") == "sleeping"
        waking = s.lease("a")
        await soon()
        assert s.alive() == {"a"}
        s.engine("a").become_ready()
        (await waking).release()


@in_loop
async def test_requests_may_leave_while_their_model_is_measured() -> None:
    meter = PaperMeter("100", SIZES)
    async with stage(meter=meter) as s:
        task = s.lease("a")
        await asyncio.sleep(0)
        assert s.value("a") == "loading"
        task.cancel()
        await soon()
        assert s.value("a") == "unloaded"
        assert not s.alive()
