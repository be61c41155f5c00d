"""Real dry runs, each in a process of its own."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.models.measuring import MemoryMeter
from specllama.engine.models.memory import need_of
from specllama.engine.options import EngineOptions, replaced
from specllama.engine.options.text_values import memory_sizes
from specllama.engine.shipped import model_path
from specllama.engine.wire.devices import CPU
from specllama.engine.wire.replies import Measured
from tests.support.options_support import engine_options

pytestmark = pytest.mark.slow


class CountingMeter(MemoryMeter):
    n_runs = 0

    async def _ask(self, options: EngineOptions | None) -> Measured:
        self.n_runs += options is not None
        return await super()._ask(options)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and an empty cache."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    return Path(shutil.copy(model_path(), tmp_path / "model.gguf"))


def options_of(file: Path, **changes: Any) -> EngineOptions:
    return engine_options(model=str(file), parallel=1, **changes)


def measure(meter: MemoryMeter, *options: EngineOptions) -> list[Measured]:
    async def run() -> list[Measured]:
        return [await meter.measure(each) for each in options]

    return asyncio.run(run())


def test_a_model_is_measured_once(file: Path) -> None:
    options = options_of(file, ctx_size=2048)
    larger = replaced(options, ctx_size=4096)
    meter = CountingMeter(memory_sizes("90%"), 0)
    first, again, second = measure(meter, options, options, larger)
    assert first == again
    assert (first.ctx_size, second.ctx_size) == (2048, 4096)
    [use], [larger_use] = first.uses, second.uses
    assert use.name == CPU
    assert larger_use.kv_cache == 2 * use.kv_cache
    assert first.n_mapped == use.model
    assert need_of(first, str(file)).on_devices()["host"] > use.model + use.kv_cache
    host = first.memory[0]
    assert host.name == "host"
    assert 0 < host.free <= host.total
    assert meter.n_runs == 2
    later = CountingMeter(memory_sizes("90%"), 0)
    assert measure(later, replaced(options, temp=0.5)) == [first]
    assert later.n_runs == 0, "another server has measured it"
    os.utime(file, ns=(1, 1))
    measure(later, options)
    assert later.n_runs == 1, "the file is another one"


def test_a_damaged_result_is_measured_again(file: Path, tmp_path: Path) -> None:
    options = options_of(file, ctx_size=512)
    [first] = measure(MemoryMeter(memory_sizes("90%"), 0), options)
    [result] = (tmp_path / "cache").rglob("*.json")
    result.write_bytes(b"{")
    meter = CountingMeter(memory_sizes("90%"), 0)
    [found] = measure(meter, options)
    assert found.uses == first.uses
    assert meter.n_runs == 1


def test_the_context_is_fitted_to_the_limit(file: Path) -> None:
    """As if no other model were in memory: 1 GiB is the margin of the machine, not of the limit."""
    [free] = measure(MemoryMeter(memory_sizes("90%"), 0), options_of(file))
    limit = need_of(free, "").on_devices()["host"] // (1 << 20) - 10
    [fitted] = measure(MemoryMeter(memory_sizes(f"{limit}"), 0), options_of(file, fit_ctx=256))
    assert 256 <= fitted.ctx_size < free.ctx_size
    assert need_of(fitted, "").on_devices()["host"] <= limit << 20
    [given] = measure(MemoryMeter(memory_sizes(f"{limit}"), 0), options_of(file, fit="off"))
    assert given.ctx_size == free.ctx_size


def test_a_file_that_is_no_model(tmp_path: Path, file: Path) -> None:
    file.write_bytes(b"GGUF")
    with pytest.raises(EngineError, match=r"model\.gguf"):
        measure(MemoryMeter(memory_sizes("90%"), 0), options_of(file))


def test_limits_of_this_machine() -> None:
    async def run() -> dict[str, int]:
        return {**await MemoryMeter(memory_sizes("50%,nothing=5"), 0).limits()}

    assert asyncio.run(run())["host"] > 0
