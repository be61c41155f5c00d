"""Kernels are tried in a child process, once for each library and processor; a stand-in for the
child dies as llama.cpp does on a processor whose tiles the compiler got wrong."""

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import BackendError
from specllama.engine.host import Processor
from specllama.engine.worker.backend.verdict import (
    PROBE,
    WRONG,
    InconclusiveError,
    KernelVerdict,
    Measure,
    find,
    run_probe,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kernels are tried on Linux only"),
]

PROCESSOR = Processor("Some Processor", frozenset({"avx2", "amx_int8"}))
DIES = f"os.kill(os.getpid(), {int(signal.SIGILL)})"


class Bench:
    """A library, a cache, and stand-ins for the probe that keep a list of the measures tried."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "libggml-cpu.so"
        self.library.write_bytes(b"some kernels")
        self.cache = directory / "cache"
        self.log = directory / "tried"

    @property
    def tried(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def probe(self, **actions: str) -> list[str]:
        """A child that does what a measure's name says (with _ for -), and passes the other
        measures."""
        known = {name.replace("_", "-"): action for name, action in actions.items()}
        code = (
            "import os, sys\n"
            "measure = sys.argv[-1]\n"
            f"with open({str(self.log)!r}, 'a') as file: print(measure, file=file)\n"
            f"exec({known!r}.get(measure, ''))\n"
        )
        return [sys.executable, "-S", "-c", code]

    def find(
        self, probe: list[str], processor: Processor = PROCESSOR, *, afresh: bool = False
    ) -> KernelVerdict:
        environ = {"XDG_CACHE_HOME": str(self.cache)}
        return find(self.library, processor, environ, probe, afresh=afresh)

    @property
    def file(self) -> Path:
        [file] = self.cache.rglob("*.json")
        return file


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_kernels_that_work_stay(bench: Bench) -> None:
    assert bench.find(bench.probe()) == KernelVerdict(Measure.AS_BUILT)
    assert bench.tried == ["as-built"]


def test_a_kernel_that_dies_is_refused_and_that_is_tried_too(bench: Bench) -> None:
    found = bench.find(bench.probe(as_built=DIES))
    assert found.measure is Measure.REFUSED
    assert "SIGILL" in found.reason
    assert bench.tried == ["as-built", "refused"]


def test_a_wrong_product_is_as_bad(bench: Bench) -> None:
    wrong = f"print('Q8_0 in AMX, batch of 67: off by 1.2'); sys.exit({WRONG})"
    found = bench.find(bench.probe(as_built=wrong))
    assert found == KernelVerdict(Measure.REFUSED, "Q8_0 in AMX, batch of 67: off by 1.2")


def test_where_refusing_does_not_help_nothing_is_rearranged(bench: Bench) -> None:
    found = bench.find(bench.probe(as_built=DIES, refused=DIES))
    assert found.measure is Measure.PLAIN
    assert bench.tried == ["as-built", "refused", "plain"]


def test_a_library_for_another_processor_is_reported_in_one_sentence(bench: Bench) -> None:
    with pytest.raises(BackendError, match=r"SIGILL.*install it again") as caught:
        bench.find(bench.probe(as_built=DIES, refused=DIES, plain=DIES))
    assert "\n" not in str(caught.value)
    bench.library.write_bytes(b"installed again")
    assert bench.find(bench.probe()).measure is Measure.AS_BUILT


def test_a_verdict_is_remembered(bench: Bench) -> None:
    found = bench.find(bench.probe(as_built=DIES))
    n = len(bench.tried)
    assert bench.find(bench.probe()) == found
    assert len(bench.tried) == n


def test_asked_afresh_it_is_found_and_remembered_anew(bench: Bench) -> None:
    bench.find(bench.probe(as_built=DIES))
    assert bench.find(bench.probe(), afresh=True).measure is Measure.AS_BUILT
    assert bench.find(bench.probe(as_built=DIES)).measure is Measure.AS_BUILT


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: (bench.library.write_bytes(b"other kernels"), PROCESSOR)[1],
        lambda _: PROCESSOR._replace(name="Another Processor"),
        lambda _: PROCESSOR._replace(flags=frozenset({"amx_int8"})),
    ],
    ids=["library", "processor", "flags"],
)
def test_a_verdict_is_on_one_library_and_one_processor(
    bench: Bench, change: Callable[[Bench], Processor]
) -> None:
    bench.find(bench.probe(as_built=DIES))
    assert bench.find(bench.probe(), change(bench)).measure is Measure.AS_BUILT


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"measure":"no such"}', b"\xff\xfe", b'{"measure":"refused'],
    ids=repr,
)
def test_a_damaged_file_costs_another_trial(bench: Bench, content: bytes) -> None:
    bench.find(bench.probe(as_built=DIES))
    bench.file.write_bytes(content)
    assert bench.find(bench.probe()).measure is Measure.AS_BUILT
    assert bench.find(bench.probe(as_built=DIES)).measure is Measure.AS_BUILT


@given(content=st.binary(max_size=60))
def test_no_content_of_the_file_is_an_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    missing = ["no-such-program-for-certain"]  # inconclusive, in no time
    bench.find(missing)
    [lock] = bench.cache.rglob("*.lock")
    lock.with_suffix(".json").write_bytes(content)
    assert bench.find(missing).measure is Measure.REFUSED


def test_a_cache_that_can_not_be_written_costs_a_trial_each_time(bench: Bench) -> None:
    bench.cache.write_bytes(b"a file where there should be a directory")
    for _ in range(2):
        assert bench.find(bench.probe(as_built=DIES)).measure is Measure.REFUSED
    assert bench.tried == 2 * ["as-built", "refused"]


def test_without_a_home_nothing_is_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    found = find(bench.library, PROCESSOR, {}, bench.probe(as_built=DIES))
    assert found.measure is Measure.REFUSED


def test_processes_that_start_together_try_once(bench: Bench) -> None:
    probe = bench.probe(as_built=DIES)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: bench.find(probe), range(8)))
    assert {verdict.measure for verdict in found} == {Measure.REFUSED}
    assert bench.tried == ["as-built", "refused"]


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("sys.exit(1)", "ended with code 1"),
        ("raise ImportError('no numpy')", "ImportError: no numpy"),
        (f"os.kill(os.getpid(), {int(signal.SIGKILL)})", "SIGKILL"),
    ],
)
def test_a_trial_without_a_result_is_careful_and_forgotten(
    bench: Bench, action: str, text: str
) -> None:
    with pytest.raises(InconclusiveError, match=text):
        run_probe(bench.probe(as_built=action), Measure.AS_BUILT)
    found = bench.find(bench.probe(as_built=action))
    assert found.measure is Measure.REFUSED
    assert text in found.reason
    assert bench.find(bench.probe()).measure is Measure.AS_BUILT


def test_a_trial_without_a_result_has_the_last_reason(bench: Bench) -> None:
    found = bench.find(bench.probe(as_built=DIES, refused="sys.exit(1)"))
    assert found.measure is Measure.REFUSED
    assert "SIGILL" in found.reason


@pytest.mark.parametrize("measure", [Measure.REFUSED, Measure.PLAIN])
def test_the_probe_itself_passes_here(measure: Measure) -> None:
    assert run_probe(PROBE, measure) == ""
