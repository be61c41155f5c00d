"""Which device holds what, from llama.cpp's own words."""

from msgspec.structs import replace

from specllama.engine.options import EngineOptions
from specllama.engine.shipped import model_path
from specllama.engine.wire.devices import DeviceUse, device_lines
from specllama.engine.worker.backend import Context, Model, device_uses, initialize
from specllama.engine.worker.backend.memory import Holdings
from tests.support.options_support import engine_options

MIB = 1 << 20
LOADED = """
load_tensors: layer   0 assigned to device Vulkan0, is_swa = 0
load_tensors: layer   1 assigned to device Vulkan0, is_swa = 0
load_tensors: layer   2 assigned to device CPU, is_swa = 0
load_tensors:   CPU_Mapped model buffer size =     0.50 MiB
load_tensors:      Vulkan0 model buffer size =     2.00 MiB
load_tensors:      Vulkan0 model buffer size =     1.00 MiB
"""
CREATED = """
llama_context: Vulkan_Host  output buffer size =     0.25 MiB
llama_kv_cache: layer   0: dev = Vulkan0
llama_kv_cache: layer   1: dev = Vulkan0
llama_kv_cache:    Vulkan0 KV buffer size =  8.00 MiB
llama_kv_cache:    Vulkan0 KV buffer size =  4.00 MiB
sched_reserve:    Vulkan0 compute buffer size =    16.00 MiB
sched_reserve:    Vulkan0 compute buffer size =    15.00 MiB
sched_reserve: Vulkan_Host compute buffer size =     0.75 MiB
"""
NAMES = {"Vulkan0": "some GPU"}


def parsed(*texts: str) -> Holdings:
    holdings = Holdings()
    for text in texts:
        for line in text.splitlines():
            holdings.note(line)
    return holdings


def test_buffers_are_added_up_and_measured_ones_replaced() -> None:
    gpu, cpu = parsed(LOADED, CREATED).by_device(NAMES)
    assert gpu == DeviceUse(
        name="Vulkan0",
        description="some GPU",
        n_layers=2,
        model=3 * MIB,
        kv_cache=12 * MIB,
        compute=15 * MIB,
    )
    assert cpu == DeviceUse(name="CPU", n_layers=1, model=MIB // 2, compute=MIB)
    assert device_lines([gpu, cpu]) == [
        "Vulkan0: 2 layers, weights 3.0 MiB, KV cache 12 MiB, compute buffers 15 MiB",
        "CPU: 1 layer, weights 0.5 MiB, KV cache 0.0 MiB, compute buffers 1.0 MiB",
    ]


def test_memory_on_another_machine_belongs_to_its_device() -> None:
    lines = """
load_tensors: layer   0 assigned to device RPC0, is_swa = 0
load_tensors: RPC0[127.0.0.1:50052] model buffer size =     2.00 MiB
llama_kv_cache: RPC0[127.0.0.1:50052] KV buffer size =  8.00 MiB
"""
    (lent,) = parsed(lines).by_device({"RPC0": "127.0.0.1:50052"})
    assert (lent.name, lent.n_layers) == ("RPC0", 1)
    assert (lent.model, lent.kv_cache) == (2 * MIB, 8 * MIB)


def test_another_context_takes_the_place_of_the_one_before() -> None:
    holdings = parsed(LOADED, CREATED)
    holdings.begin_context(1024)
    gpu, _ = holdings.by_device(NAMES)
    assert (gpu.model, gpu.kv_cache, gpu.compute) == (3 * MIB, 0, 0)
    holdings.begin_model()
    assert holdings.by_device(NAMES) == []


def test_a_draft_model_stands_beside() -> None:
    holdings = parsed(LOADED, CREATED)
    before = holdings.by_device(NAMES)
    with holdings.drafting():
        holdings.begin_model()
        assert holdings.by_device(NAMES) == [], "what has no room is explained by its own numbers"
        for line in (
            "load_tensors:      Vulkan0 model buffer size =     7.00 MiB",
            "load_tensors:         DSP0 model buffer size =     2.00 MiB",
        ):
            holdings.note(line)
        holdings.begin_context(512)
        holdings.note("llama_kv_cache:    Vulkan0 KV buffer size =     5.00 MiB")
    *both, other = holdings.by_device(NAMES)
    assert both == [replace(before[0], draft=12 * MIB), before[1]]
    assert (other.name, other.model, other.draft) == ("DSP0", 0, 2 * MIB)
    assert device_lines(both)[0].endswith("compute buffers 15 MiB, draft model 12 MiB")
    holdings.note("sched_reserve:    Vulkan0 compute buffer size =    16.00 MiB")
    gpu = holdings.by_device(NAMES)[0]
    assert (gpu.compute, gpu.draft) == (16 * MIB, 12 * MIB)
    holdings.begin_model()
    assert holdings.by_device(NAMES) == []


def test_a_part_of_a_buffer_that_is_mapped_is_of_its_device() -> None:
    holdings = parsed(
        "load_tensors:  MTL0_Mapped model buffer size =  7.00 MiB",
        "load_tensors:  CUDA_Split model buffer size =  5.00 MiB",
        "load_tensors:  MTL1 model buffer size =  3.00 MiB",
    )
    uses = {use.name: use.model // MIB for use in holdings.by_device({"MTL0": "", "MTL1": ""})}
    assert uses == {"MTL0": 7, "MTL1": 3, "CUDA_Split": 5}


def test_llama_cpp_logs_all_allocations() -> None:
    initialize()
    options: EngineOptions = engine_options(device=("none",), ctx_size=1024, parallel=1)
    model = Model(str(model_path()), options)
    context = Context(model, options, 1, unified=False)
    [use] = device_uses()
    assert use.name == "CPU"
    assert use.n_layers == model.n_layer + 1
    assert abs(use.model - model.size) < MIB
    # Two numbers of two bytes for each token and place of a layer.
    assert use.kv_cache >= 2 * 2 * context.n_ctx * model.n_layer
    assert use.compute > 0
    assert device_lines([use]) == []
    context.close()
    model.close()
