"""llama.cpp's trusted kernels, and the switching off of the others."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp

from contract_tests.kit.server import SECONDS
from specllama.engine.host import Processor, this_processor
from specllama.engine.worker.backend import Model, initialize, kernels, probe, verdict
from specllama.engine.worker.backend.ggml import extra_buffer_types
from specllama.engine.worker.backend.kernels import TRIED, Settled
from specllama.engine.worker.backend.verdict import WRONG, KernelVerdict, Measure
from tests.support.models import random_model
from tests.support.options_support import engine_options

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="kernels are tried on Linux only")
AMX = Processor("Some Processor", frozenset({"amx_int8"}))


@pytest.fixture(autouse=True, scope="module")
def backend() -> None:
    initialize()


# ---- the probe ---------------------------------------------------------------------------


def test_products_are_right() -> None:
    assert list(probe.wrong_products(extra_buffer_types().items())) == []


def test_a_wrong_product_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    multiply = probe.CpuDevice.multiply

    def one_is_wrong(self: probe.CpuDevice, *args: object) -> object:
        product = multiply(self, *args)  # type: ignore[arg-type]
        assert product is not None
        if len(product) > 64:
            product[64, 63] += 1 * product.std()
        return product

    monkeypatch.setattr(probe.CpuDevice, "multiply", one_is_wrong)
    lines = list(probe.wrong_products([]))
    assert len(lines) == len(probe.TYPES)
    assert lines[0].startswith("Q4_0 in CPU, batch of 67: off by ")
    assert probe.main(Measure.PLAIN) == WRONG
    assert capsys.readouterr().out == lines[0] + "\n"


def test_nothing_at_all_is_wrong_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_numbers(*_: object) -> object:
        return np.full((1, probe.N_OUT), np.nan)

    monkeypatch.setattr(probe.CpuDevice, "multiply", no_numbers)
    assert list(probe.wrong_products([]))


# ---- the choice of kernels -----------------------------------------------------------------------


def test_only_kernels_of_processor_and_library_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "features", lambda: {"AVX2": "1", "AMX_INT8": "1"})
    assert kernels.to_try(AMX) == [*TRIED]
    assert kernels.to_try(Processor("Another", frozenset({"avx2"}))) == []
    monkeypatch.setattr(kernels, "features", lambda: {"AVX2": "1"})
    assert kernels.to_try(AMX) == []


@linux
def test_the_library_is_asked_for_its_features() -> None:
    assert kernels.features()
    assert all(key.isidentifier() for key in kernels.features())
    assert kernels.library().is_file()


def settle_with(
    monkeypatch: pytest.MonkeyPatch, found: KernelVerdict, *, refused: bool = True
) -> Settled:
    def find(library: Path, *_: object) -> KernelVerdict:
        assert library == Path("libggml-cpu.so")
        return found

    monkeypatch.setattr(kernels, "to_try", lambda _: [*TRIED])
    monkeypatch.setattr(kernels, "library", lambda: Path("libggml-cpu.so"))
    monkeypatch.setattr(verdict, "find", find)
    monkeypatch.setattr(kernels, "refuse", lambda _: refused)
    settled: Settled = kernels.settle.__wrapped__()
    return settled


def test_where_all_is_well_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle_with(monkeypatch, KernelVerdict(Measure.AS_BUILT)) == Settled(Measure.AS_BUILT)


def test_the_warning_has_the_cause_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    measure, remark = settle_with(monkeypatch, KernelVerdict(Measure.REFUSED, "ended by SIGILL"))
    assert measure is Measure.REFUSED
    assert "AMX kernels are off" in remark
    assert "(ended by SIGILL)" in remark
    assert "costs about half of the speed" in remark
    assert 'CXXFLAGS="-fno-dse -fno-tree-dse" pip install' in remark
    assert "\n" not in remark


def test_a_list_that_was_made_before_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = KernelVerdict(Measure.REFUSED, "ended by SIGILL")
    measure, remark = settle_with(monkeypatch, found, refused=False)
    assert measure is Measure.PLAIN
    assert "--no-repack" in remark


def test_then_a_model_keeps_its_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from specllama.engine.worker.backend import model_params as module

    taken = []
    load = llama_cpp.llama_model_load_from_file

    def spy(path: bytes, params: object) -> object:
        taken.append(params.use_extra_bufts)  # type: ignore[attr-defined]
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", spy)
    for measure in Measure:
        monkeypatch.setattr(module, "settle", lambda m=measure: Settled(m))
        Model(str(random_model()), engine_options()).close()
    assert taken == [True, True, False]


# ---- how it is switched off --------------------------------------------------------------

_REFUSING = """
import ctypes, faulthandler, os, sys
faulthandler.enable()  # has an alternate signal stack, which must be there afterwards
from specllama.engine.worker.backend.ggml import extra_buffer_types
from specllama.engine.worker.backend.kernels import TRIED, _Stack, refuse

def stack():
    now = _Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(now))
    return now.sp, now.flags, now.size

before = stack()
print(refuse(TRIED), stack() == before, "AMX" in extra_buffer_types())
os.write(2, b"seen")
"""


@linux
def test_refusing_leaves_no_trace_but_the_list() -> None:
    command = [sys.executable, "-c", _REFUSING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
    assert done.stderr == "seen"


@linux
@pytest.mark.skipif(
    not kernels.to_try(this_processor()), reason="needs a processor with AMX, and llama.cpp with it"
)
def test_a_late_choice_is_reported() -> None:
    late = _REFUSING.replace("before =", "extra_buffer_types(); before =")
    command = [sys.executable, "-c", late]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
