"""Memory sizes read from llama.cpp's log lines about a model without weights."""

import os

import pytest

from specllama.engine.wire.devices import CPU, DeviceUse
from specllama.engine.worker.backend import dry_run, initialize, room
from specllama.engine.worker.backend.dry_run import DryRun, Planned
from tests.support.models import random_model
from tests.support.options_support import engine_options

MIB = 1 << 20
LINES = """
llama_model_loader: - tensor split  0: token_embd.weight q8_0     [ 512, 1000 ]    50.00 MiB
llama_model_loader: - tensor split  0: blk.0.attn_q.weight q8_0     [ 512, 512 ]    10.00 MiB
llama_model_loader: - tensor split  0: blk.1.attn_q.weight q8_0     [ 512, 512 ]    20.00 MiB
llama_model_loader: - tensor split  1: output_norm.weight f32     [ 512 ]     5.00 MiB
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device GPU0, is_swa = 0
load_tensors: layer   2 assigned to device GPU0, is_swa = 0
load_tensors:          CPU model buffer size =     0.00 MiB
llama_kv_cache: layer   0: dev = CPU
llama_kv_cache: layer   1: dev = GPU0
llama_kv_cache: size =   32.00 MiB (  8192 cells,   2 layers,  4/1 seqs), K (f16):   16.00 MiB
llama_kv_cache: layer   1: dev = GPU0
llama_kv_cache: size =    8.00 MiB (   512 cells,   1 layers,  4/1 seqs), K (f16):    4.00 MiB
sched_reserve:       GPU0 compute buffer size =     3.00 MiB
"""
OUTPUT = "llama_model_loader: - tensor split  0: output.weight q8_0  [ 512, 1 ]    15.00 MiB"


def planned(*more: str, n_bytes: int) -> dict[str, DeviceUse]:
    collected = Planned()
    for line in (*LINES.splitlines(), *more):
        collected.note(line)
    collected.place_weights(n_bytes)
    return {use.name: use for use in collected.by_device({"GPU0": "a GPU"})}


def test_weights_and_caches_are_where_their_layers_are() -> None:
    found = planned(OUTPUT, n_bytes=100 * MIB)
    gpu, cpu = found["GPU0"], found[CPU]
    assert (gpu.n_layers, gpu.model, gpu.kv_cache, gpu.compute) == (
        *(2, 40 * MIB, 24 * MIB, 3 * MIB),
    )
    assert (cpu.n_layers, cpu.model, cpu.kv_cache) == (1, 60 * MIB, 16 * MIB)


def test_an_output_that_is_the_input_is_there_twice() -> None:
    found = planned(n_bytes=85 * MIB)
    assert (found["GPU0"].model, found[CPU].model) == (75 * MIB, 60 * MIB)


def test_rounded_sizes_add_up_to_the_exact_one() -> None:
    found = planned(OUTPUT, n_bytes=101 * MIB)
    assert found["GPU0"].model + found[CPU].model == pytest.approx(101 * MIB, abs=2)


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    initialize()
    for value in (None, "0"):
        if value is None:
            monkeypatch.delenv("LLAMA_TRACE", raising=False)
        else:
            monkeypatch.setenv("LLAMA_TRACE", value)
        DryRun(str(random_model()), engine_options()).close()
        assert os.environ.get("LLAMA_TRACE") == value


def test_no_context_is_measured_with_tensors_that_a_device_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    initialize()
    options = engine_options(ctx_size=100_000, device=("none",))
    free = DryRun(str(random_model()), options)
    [expected] = free.measure(options, 1, True, 100_000)
    free.close()

    monkeypatch.setattr(dry_run, "devices", lambda: [("GPU0", "a GPU", 1, 1)])
    monkeypatch.setattr(room, "most_in_tensors", lambda _told: 20_000.0)
    begun = list[int]()
    begin = Planned.begin_context

    def noted(self: Planned, n_ctx: int) -> None:
        begun.append(n_ctx)
        begin(self, n_ctx)

    monkeypatch.setattr(Planned, "begin_context", noted)
    bound = DryRun(str(random_model()), options)
    uses = {use.name: use for use in bound.measure(options, 1, True, 100_000)}
    bound.close()
    assert max(begun) == 20_000 // 256 * 256
    assert uses[CPU].kv_cache == pytest.approx(expected.kv_cache, rel=0.01)
