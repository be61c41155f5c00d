"""Copies of cells between sequences hold at once, whatever comes before the next decode."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import llama_cpp

from specllama.engine.worker.backend import BackendError, Context, Model
from tests.support.options_support import engine_options

N = 40
OPTIONS = {"ctx_size": 1024, "batch_size": 64, "ubatch_size": 64}


@pytest.fixture(params=[False, True], ids=["separate", "unified"])
def context(model: Model, request: pytest.FixtureRequest) -> Iterator[Context]:
    options = engine_options(**OPTIONS, kv_unified=request.param)
    made = Context(model, options, n_seq=4, unified=request.param)
    yield made
    made.close()


def text(seed: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(300, size=N, dtype=np.int32)


def evaluated(
    context: Context, sequence: int, tokens: npt.NDArray[np.int32], start: int
) -> npt.NDArray[np.float32]:
    """The logits after the last token."""
    context.batch.clear()
    last = context.batch.add(tokens[start:], start, sequence=sequence)
    context.decode()
    return context.logits(last).copy()


def test_a_copy_has_the_contents_of_its_time(context: Context) -> None:
    """The source gets another text before the next decode."""
    first, second = text(1), text(2)
    expected = evaluated(context, 0, first, 0)
    evaluated(context, 1, second, 0)
    other = context.save_sequence(1)
    assert context.copy(0, 2, N - 1)
    context.remove(0, 0)
    context.restore_sequence(0, other, N)
    assert np.allclose(evaluated(context, 2, first, N - 1), expected, atol=1e-2)


def test_a_state_restored_over_a_copy_stays(context: Context) -> None:
    first, second = text(1), text(2)
    evaluated(context, 0, first, 0)
    expected = evaluated(context, 1, second, 0)
    other = context.save_sequence(1)
    assert context.copy(0, 2, N - 1)
    context.remove(2, 0)
    context.restore_sequence(2, other, N)
    context.remove(2, N - 1)
    assert np.allclose(evaluated(context, 2, second, N - 1), expected, atol=1e-2)


def test_a_copy_can_be_saved_at_once(context: Context) -> None:
    first = text(1)
    expected = evaluated(context, 0, first, 0)
    assert context.copy(0, 2, N - 1)
    saved = context.save_sequence(2)
    context.restore_sequence(3, saved, N - 1)
    assert np.allclose(evaluated(context, 3, first, N - 1), expected, atol=1e-2)


def test_a_text_that_llama_cpp_does_not_copy_is_not_saved(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(context, 0, text(1), 0)
    monkeypatch.setattr(llama_cpp, "llama_state_seq_get_data_ext", lambda *about: 0)
    with pytest.raises(BackendError):
        context.save_sequence(0)
    assert context.save(0) is None
    if not context.copy(0, 1, N - 1):
        evaluated(context, 1, text(1), 0)  # it is empty still


def test_a_text_is_not_saved_without_memory(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(context, 0, text(1), 0)
    monkeypatch.setattr(llama_cpp, "llama_state_seq_get_size_ext", lambda *about: 1 << 62)
    with pytest.raises(BackendError):
        context.save_sequence(0)
    assert context.save(0) is None
