"""The choices and messages for real models, with stand-ins for free memory."""

import logging
from typing import Any

import msgspec
import pytest

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.shipped import model_path
from specllama.engine.wire.devices import CPU, DeviceMemory, DeviceUse
from specllama.engine.worker.backend import (
    Context,
    EmbeddingContext,
    Model,
    initialize,
    sequence_count,
    sequence_ids,
)
from specllama.engine.worker.backend.dry_run import MEASURED
from specllama.engine.worker.backend.library import device_uses
from specllama.engine.worker.backend.memory import HostMemory
from specllama.engine.worker.fitting import fitted
from specllama.engine.worker.fitting.measuring import Measuring
from tests.support.options_support import engine_options
from tools.models.build import ensure

MIB = 1 << 20
ONE_BY_ONE: dict[str, Any] = {"parallel": 1, "ubatch_size": 1}  # for small compute buffers
LARGEST = (1 << 31) - 1
CACHED = ["specllama-tiny", "tiny-hybrid", "tiny-window"]
GENERATING = [*CACHED, "tiny-mamba", "tiny-spm"]
EMBEDDING = ["tiny-bert", "tiny-embed"]


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    initialize()


def file_of(name: str) -> str:
    return str(model_path() if name == "specllama-tiny" else ensure(name))


def options_for(name: str, **chosen: Any) -> EngineOptions:
    return engine_options(**{"model": file_of(name), "warmup": False, **chosen})


def fit(options: EngineOptions, free: int, *devices: DeviceMemory, swap: int = 0) -> EngineOptions:
    host = HostMemory(free, 64 << 30, swap)
    return fitted(options.model.model, options, host=lambda: host, devices=lambda: devices)


def needed(options: EngineOptions, n_ctx: int) -> DeviceUse:
    with Measuring(options.model.model, options) as measuring:
        [use] = measuring.uses(n_ctx)
    return use


def held(options: EngineOptions) -> DeviceUse:
    """The sizes that llama.cpp reports as allocated."""
    model = Model(options.model.model, options)
    try:
        if options.embedding.embeds():
            EmbeddingContext(model, options, sequence_count(model, options)).close()
        else:
            n_seq = sequence_ids(model, options)
            Context(model, options, n_seq, options.unified_kv_cache()).close()
        [use] = device_uses()
        return use
    finally:
        model.close()


# ---- the estimate ------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize(
    "chosen",
    [
        {"ctx_size": 8192},
        {"ctx_size": 4096, "parallel": 3, "kv_unified": False},
        {"ctx_size": 2048, "swa_full": True, "cache_type_k": "q8_0", "ubatch_size": 64},
    ],
    ids=["unified", "separate", "small"],
)
def test_measured_sizes_are_llama_cpps(name: str, chosen: dict[str, Any]) -> None:
    options = options_for(name, **chosen)
    measured, real = needed(options, options.context_size()), held(options)
    assert measured.name == CPU
    assert measured.kv_cache == pytest.approx(real.kv_cache, abs=MIB // 50)
    assert measured.compute == pytest.approx(real.compute, abs=MIB // 50)
    assert measured.model == pytest.approx(real.model, rel=0.01, abs=MIB // 50)


@pytest.mark.parametrize("name", EMBEDDING)
def test_the_same_of_models_for_embeddings(name: str) -> None:
    options = options_for(name, embedding=True)
    with Measuring(options.model.model, options) as measuring:
        [measured] = measuring.uses(measuring.n_ctx)
    real = held(options)
    assert measured.kv_cache == pytest.approx(real.kv_cache, abs=MIB // 50)
    assert measured.compute == pytest.approx(real.compute, abs=MIB // 50)


@pytest.mark.parametrize("name", CACHED)
def test_contexts_too_large_to_be_measured_take_more_in_proportion(name: str) -> None:
    options = options_for(name)
    at = {n: needed(options, n).kv_cache for n in (MEASURED // 2, MEASURED, 4 * MEASURED)}
    each = (at[MEASURED] - at[MEASURED // 2]) / (MEASURED // 2)
    assert at[4 * MEASURED] == pytest.approx(at[MEASURED] + 3 * MEASURED * each)
    assert each > 0


def test_a_draft_model_counts_as_well() -> None:
    alone = needed(options_for("specllama-tiny"), 4096)
    both = needed(options_for("specllama-tiny", model_draft=file_of("specllama-tiny")), 4096)
    assert both.model == pytest.approx(2 * alone.model, rel=0.01)
    assert both.kv_cache > alone.kv_cache


def test_a_model_without_the_size_of_its_vocabulary_can_be_measured() -> None:
    named = options_for("tiny-window", override_kv=("gemma3.vocab_size=str:unknown",))
    assert needed(named, 4096).kv_cache == needed(options_for("tiny-window"), 4096).kv_cache


def test_measuring_leaves_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "specllama.engine.llama")
    needed(options_for("tiny-hybrid"), 4096)
    assert not caplog.records


# ---- the choice --------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATING)
def test_plenty_of_memory_changes_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for options in (
        options_for(name),
        options_for(name, ctx_size=0),
        options_for(name, ctx_size=9),
    ):
        assert fit(options, 32 << 30) == options
    assert not caplog.records


@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-window", "tiny-spm"])
def test_the_context_is_as_large_as_fits(name: str, caplog: pytest.LogCaptureFixture) -> None:
    options = options_for(name, fit_target=(100,), fit_ctx=256)
    with Measuring(options.model.model, options) as measuring:
        full = measuring.n_ctx
    wanted = needed(options, full // 2)
    found = fit(options, wanted.model + wanted.kv_cache + wanted.compute + 100 * MIB)
    assert full // 2 <= found.context.ctx_size < full
    [record] = caplog.records
    assert f"a context of {found.context.ctx_size} tokens in place of {full}" in record.message
    assert "free in the machine's memory" in record.message


def test_given_options_stay(caplog: pytest.LogCaptureFixture) -> None:
    free = 8 * MIB
    for given in (0, 8192):
        options = options_for("tiny-hybrid", ctx_size=given)
        assert fit(options, free) == options
    assert all("memory is short" in record.message for record in caplog.records)
    assert len(caplog.records) == 2
    assert fit(options_for("tiny-hybrid"), free).context.ctx_size == 4096
    by_slot = options_for("tiny-hybrid", kv_unified_per_slot=2048)
    assert fit(by_slot, free) == by_slot
    off = options_for("tiny-hybrid", fit="off", ctx_size=MEASURED)
    assert fit(off, 0) == off


def test_a_margin_alone_is_no_reason_to_complain(caplog: pytest.LogCaptureFixture) -> None:
    options = options_for("tiny-hybrid", ctx_size=4096)
    assert fit(options, 900 * MIB) == options
    assert not caplog.records


def test_devices_that_hold_nothing_of_the_model_do_not_count() -> None:
    options = options_for("tiny-hybrid")
    assert fit(options, 32 << 30, DeviceMemory("GPU0", 0, 1 << 30)) == options


def test_a_model_that_cannot_be_measured_is_left_to_its_loading() -> None:
    options = options_for("tiny-hybrid", model=__file__)
    assert fit(options, 1) == options


def test_unknown_memory_changes_nothing() -> None:
    options = options_for("tiny-hybrid", ctx_size=LARGEST)
    assert fitted(options.model.model, options, host=lambda: None, devices=list) == options


# ---- without room --------------------------------------------------------------------


@pytest.mark.parametrize("name", CACHED)
def test_an_absurd_context_is_refused_with_one_that_fits(name: str) -> None:
    options = options_for(name, ctx_size=LARGEST, **ONE_BY_ONE)
    with pytest.raises(BackendError, match=r"no memory .*1,024 MiB of 65,536 MiB are free") as e:
        fit(options, 1 << 30)
    text = str(e.value)
    assert f"a context of {LARGEST} tokens needs" in text
    fits = int(text.partition("-c ")[2].split()[0])
    smaller = options_for(name, ctx_size=fits, **ONE_BY_ONE)
    assert fit(smaller, 1 << 30) == smaller
    with pytest.raises(BackendError, match="-c "):
        fit(options_for(name, ctx_size=2 * fits, **ONE_BY_ONE), 1 << 30)


@pytest.mark.parametrize("name", CACHED)
def test_impossible_sizes_are_rejected_without_fitting_too(name: str) -> None:
    """64 GiB, which `fit` takes as the memory of the machine, and swap."""
    options = options_for(name, ctx_size=LARGEST, fit="off", **ONE_BY_ONE)
    with pytest.raises(BackendError, match=r"65,536 MiB .* needs .*; -c \d+ would fit$"):
        fit(options, 1 << 30)
    assert fit(options, 1 << 30, swap=1 << 50) == options
    large = options_for(name, ctx_size=2 * MEASURED, **ONE_BY_ONE)
    with pytest.raises(BackendError, match=r"would fit \(--fit off tries it nevertheless\)$"):
        fit(large, 1 << 20)


@pytest.mark.parametrize("choice", ["on", "off"])
def test_a_cache_beyond_all_memory_of_a_device_is_refused(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device whose memory is the machine's, the system would kill the process."""
    measured = Measuring.uses

    def on_device(*given: Any) -> list[DeviceUse]:
        return [msgspec.structs.replace(use, name="GPU0") for use in measured(*given)]

    monkeypatch.setattr(Measuring, "uses", on_device)
    given = {"ctx_size": LARGEST, "fit": choice, "n_gpu_layers": "all"}
    options = options_for("specllama-tiny", **given, **ONE_BY_ONE)
    small = DeviceMemory("GPU0", 1 << 30, 2 << 30)
    with pytest.raises(BackendError, match=rf"GPU0 has .* {LARGEST} tokens needs .*; -c \d+") as e:
        fit(options, 1 << 30, small)
    n_fit = int(str(e.value).partition("-c ")[2].split()[0])
    [use] = on_device(Measuring(options.model.model, options), n_fit)
    assert use.model + use.kv_cache + use.compute <= small.free
    assert fit(options, 1 << 30, DeviceMemory("GPU0", 1 << 30, 1 << 50)) == options


def test_smaller_types_of_the_cache_are_named_where_they_help() -> None:
    options = options_for("tiny-hybrid", ctx_size=MEASURED, **ONE_BY_ONE)
    cache = needed(options, MEASURED)
    free = cache.kv_cache * 3 // 4 + cache.compute + cache.model
    assert free < cache.kv_cache
    with pytest.raises(BackendError, match=r"-c \d+ or -ctk q8_0 -ctv q8_0 would fit"):
        fit(options, free)
    with pytest.raises(BackendError, match=r"-c \d+ would fit"):
        fit(options, cache.kv_cache // 3)


def test_swap_counts_before_anything_is_refused() -> None:
    cache = needed(options_for("tiny-hybrid"), MEASURED).kv_cache
    options = options_for("tiny-hybrid", ctx_size=MEASURED)
    assert fit(options, cache // 2, swap=cache) == options


def test_weights_count_where_they_are_not_mapped() -> None:
    mapped = options_for("tiny-window", ctx_size=256, repack=False)
    assert fit(mapped, 3 * MIB) == mapped
    with pytest.raises(BackendError, match=r"beside 5\.5 MiB of weights; a smaller quantization"):
        fit(options_for("tiny-window", ctx_size=256, mmap=False), 3 * MIB)


def test_a_state_of_a_fixed_size_takes_any_context() -> None:
    options = options_for("tiny-mamba", ctx_size=LARGEST)
    assert fit(options, 1 << 30) == options
