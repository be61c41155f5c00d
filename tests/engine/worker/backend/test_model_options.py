"""Options of how a model is loaded and computed, on real models."""

import dataclasses
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import llama_cpp

from specllama.engine.worker.backend import BackendError, context_setup
from specllama.engine.worker.backend.ggml import ThreadPool, tensor_overrides
from tests.support.control_vectors import write_vector
from tests.support.logits import logits
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tools.models.gguf_file import write_model
from tools.models.hostile import write_hostile_files
from tools.models.recipes import RECIPES, Recipe

N_EMBD = 128

Tensors = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def plain() -> npt.NDArray[np.float32]:
    return logits()


# ---- control vectors ---------------------------------------------------------------------


def direction(seed: int, n: int = N_EMBD) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


def test_vectors_are_scaled_and_added(tmp_path: Path) -> None:
    a = write_vector(tmp_path / "a", {"direction.1": direction(1), "direction.3": direction(2)})
    b = write_vector(tmp_path / "b", {"direction.1": direction(3), "direction.9": direction(4)})
    total = context_setup.combine([(a, 1.0), (b, -0.5)], N_EMBD, 4)
    assert total.shape == (3, N_EMBD)
    np.testing.assert_allclose(total[0], direction(1) - 0.5 * direction(3), rtol=1e-6)
    assert not total[1].any()
    np.testing.assert_allclose(total[2], direction(2))


def test_a_vector_steers_its_layers_only(tmp_path: Path, plain: npt.NDArray[np.float32]) -> None:
    path = write_vector(tmp_path / "a", {"direction.1": direction(1)})
    steered = logits(control_vector=(path,))
    assert np.abs(steered - plain).max() > 0.1
    scaled = logits(control_vector_scaled=((path, 0.5), (path, 0.5)))
    np.testing.assert_allclose(scaled, steered, atol=1e-4)
    np.testing.assert_array_equal(logits(control_vector_scaled=((path, 0.0),)), plain)
    outside = logits(control_vector=(path,), control_vector_layer_range=(2, 5))
    np.testing.assert_array_equal(outside, plain)
    inside = logits(control_vector=(path,), control_vector_layer_range=(1, 1))
    np.testing.assert_array_equal(inside, steered)


BAD: dict[str, Tensors] = {
    "name": {"output.1": direction(1)},
    "number": {"direction.x": direction(1)},
    "layer-0": {"direction.0": direction(1)},
    "half": {"direction.1": direction(1).astype(np.float16)},
    "matrix": {"direction.1": direction(1).reshape(2, -1)},
    "infinite": {"direction.1": direction(1) * np.float32(np.inf)},
    "other-model": {"direction.1": direction(1, 64)},
    "nothing": {},
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_control_vector(kind: str, tmp_path: Path) -> None:
    path = write_vector(tmp_path / "a", BAD[kind])
    with pytest.raises(BackendError) as caught:
        logits(control_vector=(path,))
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_context_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's driver may stumble over what outlives its model."""
    freed: list[object] = []

    def free(context: object) -> None:
        freed.append(context)
        llama_free(context)

    llama_free = llama_cpp.llama_free
    monkeypatch.setattr(llama_cpp, "llama_free", free)
    path = write_vector(tmp_path / "a", BAD["other-model"])
    with pytest.raises(BackendError):
        logits(control_vector=(path,))
    assert len(freed) == 1


def test_damaged_files(tmp_path: Path) -> None:
    good = tmp_path / "good"
    write_vector(good, {"direction.1": direction(1)})
    for path in write_hostile_files(tmp_path, random_model()).values():
        with pytest.raises(BackendError) as caught:
            context_setup.combine([(str(path), 1.0)], N_EMBD, 2)
        assert "\n" not in str(caught.value)
    cut = tmp_path / "cut"
    cut.write_bytes(good.read_bytes()[:-64])
    with pytest.raises(BackendError):
        context_setup.combine([(str(cut), 1.0)], N_EMBD, 2)


# ---- where tensors go --------------------------------------------------------------------


def overridden(caplog: pytest.LogCaptureFixture, load: Callable[[], object]) -> set[str]:
    """The tensors that llama.cpp says it puts elsewhere."""
    with caplog.at_level(logging.DEBUG, "specllama.engine.llama"):
        load()
    lines = [r.getMessage() for r in caplog.records if "buffer type overridden" in r.getMessage()]
    caplog.clear()
    return {line.split()[1] for line in lines}


def test_tensors_that_match_are_overridden(
    caplog: pytest.LogCaptureFixture, plain: npt.NDArray[np.float32]
) -> None:
    given: dict[str, Any] = {"override_tensor": (r"blk\.1\.ffn_(up|down)=CPU",), "mmap": False}
    # With a GPU, computations elsewhere are rounded differently.
    same = partial(np.testing.assert_allclose, desired=plain, atol=0.1)
    found = overridden(caplog, lambda: same(logits(**given)))
    assert found == {"blk.1.ffn_up.weight", "blk.1.ffn_down.weight"}
    assert overridden(caplog, lambda: logits(cpu_moe=True)) == set(), "a dense model"


def test_unknown_buffers_and_broken_patterns_are_refused() -> None:
    with pytest.raises(BackendError, match=r"--override-tensor: unknown buffer type 'GPU9'.*CPU"):
        logits(override_tensor=("a=GPU9",))
    with pytest.raises(BackendError, match="cannot load the model"):
        logits(override_tensor=("(=CPU",))


def test_dense_layers() -> None:
    array = tensor_overrides(engine_options(n_cpu_ffn=2))
    patterns = [entry.pattern for entry in array]
    assert patterns == [
        rb"blk\.0\.ffn_(up|down|gate)\.",
        rb"blk\.1\.ffn_(up|down|gate)\.",
        None,
    ]


def test_experts() -> None:
    array = tensor_overrides(engine_options(cpu_moe=True, n_cpu_moe=2, override_tensor=("a=CPU",)))
    patterns = [entry.pattern for entry in array]
    assert patterns[0] == b"a"
    assert patterns[1].startswith(rb"\.ffn_")
    assert [p[:8] for p in patterns[2:4]] == [rb"blk\.0\.", rb"blk\.1\."]
    assert patterns[4] is None, "the end"
    assert array[1].buffer == array[2].buffer is not None
    assert tensor_overrides(engine_options()) is None


# ---- loading and computing ---------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"direct_io": True},
        {"no_host": True},
        {"mmap": False},
        {"perf": True},
        {"load_mode": "none"},
        {"load_mode": "dio"},
        {"lazy_mode": "on"},
        {"lazy_mode": "off"},
    ],
    ids=str,
)
def test_the_way_of_loading_changes_nothing(
    options: dict[str, Any], plain: npt.NDArray[np.float32]
) -> None:
    np.testing.assert_array_equal(logits(**options), plain)


def test_repacking_changes_roundings_only(plain: npt.NDArray[np.float32]) -> None:
    np.testing.assert_allclose(logits(repack=False), plain, atol=0.1)


def test_perf_logs_its_measurements(caplog: pytest.LogCaptureFixture) -> None:
    logits(perf=True)
    assert [r.name for r in caplog.records if "prompts: 3 tokens" in r.getMessage()] == [
        "specllama.engine.perf"
    ]


needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="threads can't be placed on this system"
)


@needs_affinity
@pytest.mark.parametrize(
    "options",
    [
        {"prio": -1},
        {"poll": 0, "threads": 2},
        {"threads": 2, "threads_batch": 1, "cpu_strict": 1},
        {"threads": -1},
    ],
    ids=str,
)
def test_threads_on_chosen_cpus(options: dict[str, Any]) -> None:
    before = os.sched_getaffinity(0)
    cpu = min(before)
    here: dict[str, Any] = {"device": ("none",)}  # ggml places threads when they compute
    plain = logits(**here)
    try:
        found = logits(cpu_mask=(cpu,), **here, **options)
        np.testing.assert_allclose(found, plain, atol=1e-3)
        assert os.sched_getaffinity(0) == {cpu}
    finally:
        os.sched_setaffinity(0, before)


@needs_affinity
def test_cpus_that_are_not_there_are_refused() -> None:
    missing = max(set(range(512)) - os.sched_getaffinity(0))
    with pytest.raises(BackendError, match="--cpu-mask, --cpu-range"):
        logits(cpu_range=(missing,))


def test_a_priority_that_is_not_permitted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    with pytest.raises(BackendError, match="--prio 2"):
        ThreadPool(1, [], strict=False, priority=2, poll=50)


def test_a_model_without_a_steerable_layer_stays_as_it_is(tmp_path: Path) -> None:
    recipe = RECIPES["random"]
    assert isinstance(recipe, Recipe)
    decoder = dataclasses.replace(recipe.decoder, n_layer=1)
    write_model(dataclasses.replace(recipe, decoder=decoder), tmp_path / "one.gguf")
    path = write_vector(tmp_path / "a", {"direction.1": direction(1)})
    steered = logits(str(tmp_path / "one.gguf"), control_vector=(path,))
    np.testing.assert_array_equal(steered, logits(str(tmp_path / "one.gguf")))
