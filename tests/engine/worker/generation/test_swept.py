"""The sweep of a real context: the state after it, and the values that it keeps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_cpp import llama_cpp

from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import Context, Model, OutOfMemoryError, initialize
from specllama.engine.worker.generation.planning import known_times, swept
from tests.support.models import random_model
from tests.support.options_support import engine_options

N_SEQ = 3


@pytest.fixture(params=[True, False], ids=["unified", "separate"])
def context(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Context]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    initialize()
    model = Model(str(random_model()), options())
    context = Context(model, options(), N_SEQ, request.param)
    yield context
    context.close()
    model.close()


def options() -> EngineOptions:
    return engine_options(ctx_size=1024, parallel=N_SEQ, threads=1)


def is_empty(context: Context) -> bool:
    return all(
        llama_cpp.llama_memory_seq_pos_max(context._memory, each) == -1 for each in range(N_SEQ)
    )


def test_it_is_measured_once(context: Context, tmp_path: Path) -> None:
    assert known_times(context, options()) is None
    first = swept(context, options())
    assert 1 in first.rows
    assert first.prompts
    assert is_empty(context)
    [file] = (tmp_path / "specllama" / "steps").iterdir()
    assert known_times(context, options()) == first
    file.write_text("{")
    assert known_times(context, options()) is None


@pytest.mark.parametrize("n", [0, 1, 3, 12])
def test_one_that_is_stopped_is_not_remembered(context: Context, tmp_path: Path, n: int) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == n + 1  # not asked again

    found = swept(context, options(), stop)
    assert asked == n + 1
    assert (1 in found.rows) == (n > 0)
    assert is_empty(context)
    assert not (tmp_path / "specllama" / "steps").exists()


def test_sizes_without_memory_are_left_out(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = context.decode

    def limited() -> None:
        if context.batch.n_tokens > 40:
            raise OutOfMemoryError
        decode()

    monkeypatch.setattr(context, "decode", limited)
    found = swept(context, options())
    assert max(found.prompts, default=0) < 40
    assert 1 in found.rows
    assert is_empty(context)


def test_one_that_found_nothing_is_not_remembered(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = context.evaluate
    times = iter(2.0**i for i in range(99))

    def disturbed(*args: object, **kwargs: object) -> float:
        evaluate([1])
        return next(times)

    monkeypatch.setattr(context, "evaluate", disturbed)
    assert not swept(context, options()).prompts
    assert not (tmp_path / "specllama" / "steps").exists()
