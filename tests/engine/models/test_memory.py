"""What models take, the limits, and the messages about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.models.memory import (
    PLACES,
    Need,
    limits,
    need_of,
    need_of_loaded,
    refusal,
    total,
    unknown_devices,
    with_measured,
)
from specllama.engine.options.text_values import memory_sizes
from specllama.engine.wire.devices import CPU, DeviceMemory, DeviceUse
from specllama.engine.wire.replies import Measured
from tests.support.factories import model_info
from tests.support.options_support import engine_options

MIB = 1 << 20
MACHINE = [
    DeviceMemory("host", 60 * MIB, 100 * MIB),
    DeviceMemory("GPU0", 20 * MIB, 24 * MIB),
    DeviceMemory("GPU1", 0, 0),
]
USES = [
    DeviceUse(name="GPU0", model=10, kv_cache=20, compute=3, draft=1),
    DeviceUse(name=CPU, model=5, kv_cache=6, compute=7),
]
NEEDS = st.builds(
    Need,
    st.dictionaries(st.sampled_from(["host", "GPU0"]), st.integers(0, 99)),
    st.integers(0, 99),
    st.sampled_from(["a", "b"]),
)


def test_mapped_weights_are_part_of_the_host_s_memory() -> None:
    need = need_of(Measured(MACHINE, USES, n_mapped=5, n_base=100), "file")
    assert need == Need({"GPU0": 34, "host": 113}, 5, "file")
    assert need.on_devices() == {"GPU0": 34, "host": 118}


def test_models_with_the_same_file_share_its_memory() -> None:
    assert total([Need({"host": 1}, 5, "a"), Need({"host": 2}, 5, "a")]) == {"host": 8}
    assert total([Need({"host": 1}, 5, "a"), Need({"host": 2}, 5, "b")]) == {"host": 13}


@given(st.lists(NEEDS), NEEDS)
def test_another_model_never_takes_less_than_nothing(needs: list[Need], more: Need) -> None:
    before, after = total(needs), total([*needs, more])
    assert all(after[device] >= before[device] for device in before)
    for device, n_bytes in after.items():
        assert n_bytes - before.get(device, 0) <= more.on_devices().get(device, 0)


def test_a_loaded_model_takes_what_its_process_reports() -> None:
    info = model_info(devices=USES)
    planned = Need({"GPU0": 30, "host": 50}, 5, "file")
    assert need_of_loaded(planned, info, 0) == Need({"GPU0": 34, "host": 50}, 5, "file")
    assert need_of_loaded(planned, info, 70) == Need({"GPU0": 34, "host": 70}, 5, "file")
    assert need_of_loaded(Need(), info, 0).own == {"GPU0": 34, "host": 18}


@pytest.mark.parametrize(
    ("sizes", "margin", "expected"),
    [
        ("", 0, {}),
        ("70", 0, {"host": 70 * MIB}),
        ("70%,GPU0=50%", 0, {"host": 70 * MIB, "GPU0": 12 * MIB}),
        ("gpu=7", 0, {"GPU0": 7 * MIB, "GPU1": 7 * MIB}),
        ("gpu=7,GPU0=8", 0, {"GPU0": 8 * MIB, "GPU1": 7 * MIB}),
        ("gpu=50%", 0, {"GPU0": 12 * MIB}),
        ("", 5 * MIB, {"host": 55 * MIB, "GPU0": 15 * MIB}),
        ("50", 5 * MIB, {"host": 50 * MIB, "GPU0": 15 * MIB}),
        ("59", 5 * MIB, {"host": 55 * MIB, "GPU0": 15 * MIB}),
        ("", 70 * MIB, {"host": 0, "GPU0": 0}),
    ],
)
def test_limits(sizes: str, margin: int, expected: dict[str, int]) -> None:
    given = memory_sizes(sizes) if sizes else ()
    assert limits(given, margin, MACHINE) == expected


def test_sizes_of_unknown_devices() -> None:
    sizes = memory_sizes("host=5,GPU1=50%,CUDA9=5,gpu=3")
    assert unknown_devices(sizes, MACHINE) == ["GPU1", "CUDA9"]


def test_the_options_of_the_dry_run_are_loaded() -> None:
    options = engine_options()
    assert with_measured(options, None) is options
    found = with_measured(options, Measured([], ctx_size=512))
    assert (found.context.ctx_size, found.compute.n_gpu_layers) == (512, "auto")
    found = with_measured(options, Measured([], ctx_size=512, n_gpu_layers=7))
    assert (found.context.ctx_size, found.compute.n_gpu_layers) == (512, 7)


def use(device: str, *, model: int = 0, kv_cache: int = 0) -> DeviceUse:
    return DeviceUse(name=device, model=model * MIB, kv_cache=kv_cache * MIB)


@pytest.mark.parametrize(
    ("uses", "room", "said", "not_said"),
    [
        ([use(CPU, kv_cache=60)], {"host": 50}, ["--ctx-size", "q8_0", "60 MiB"], ["layers"]),
        ([use(CPU, kv_cache=60)], {"host": 20}, ["--ctx-size"], ["q8_0"]),
        ([use(CPU, model=60)], {"host": 50}, ["--models-memory"], ["--ctx-size", "q8_0"]),
        ([use(CPU, model=60), use("GPU0")], {"host": 50}, ["a higher --n-gpu-layers"], []),
        ([use("GPU0", model=60)], {"GPU0": 50}, ["a lower --n-gpu-layers", "on GPU0"], ["host"]),
        ([], {PLACES: 0}, ["--models-max"], ["--models-memory"]),
    ],
)
def test_what_would_help(
    uses: list[DeviceUse], room: dict[str, int], said: list[str], not_said: list[str]
) -> None:
    measured = Measured([], uses, is_cache_16_bit=True)
    sizes = {device: n * MIB for device, n in room.items()}
    text = refusal("name", measured, need_of(measured, "file"), sizes)
    assert "'name'" in text
    assert all(part in text for part in said), text
    assert not any(part in text for part in not_said), text
