"""Models of real shapes: the values of a matrix's random blocks, and llama.cpp loads the file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as WeightType
from gguf import GGUFReader
from gguf.quants import dequantize

from specllama.engine.worker.backend import Context, Model, initialize
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play
from tools.models import large
from tools.models.large import CHUNK, blocks, write
from tools.models.large_shapes import SHAPES, Shape

SMALL = {
    name: replace(SHAPES[name], n_layer=n, n_vocab=4096, n_embd=256, n_head=2, n_head_kv=1)
    for name, n in {"1.3b": 2, "trial": 2, "trial-moe": 2, "trial-hybrid": 4}.items()
}


@pytest.mark.parametrize(
    "kind", [WeightType.Q4_0, WeightType.Q4_K, WeightType.Q6_K, WeightType.Q8_0]
)
def test_random_blocks_have_the_size_that_is_asked_for(kind: WeightType) -> None:
    weights = dequantize(blocks(kind, 2000, 0.02, np.random.default_rng(1)), kind)
    assert np.isfinite(weights).all()
    assert weights.std() == pytest.approx(0.02, rel=0.05)
    assert abs(weights.mean()) < 0.1 * weights.std()


def test_a_type_without_a_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="Q2_K"):
        blocks(WeightType.Q2_K, 1, 1.0, np.random.default_rng(1))


@pytest.mark.parametrize("name", SMALL)
def test_the_logits_of_a_file_are_finite_and_spread(name: str, tmp_path: Path) -> None:
    initialize()
    write(SMALL[name], name, tmp_path / "model.gguf")
    options = engine_options(ctx_size=256)
    model = Model(str(tmp_path / "model.gguf"), options)
    context = Context(model, options, 1, True)
    try:
        context.evaluate([1])
        row = context.logits(0)
        assert np.isfinite(row).all()
        assert 1 < row.std() < 8
    finally:
        context.close()
        model.close()


@pytest.mark.slow
def test_a_hybrid_s_prompt_is_continued_from_a_checkpoint(tmp_path: Path) -> None:
    initialize()
    write(SMALL["trial-hybrid"], "trial-hybrid", tmp_path / "model.gguf")
    model = Model(str(tmp_path / "model.gguf"), engine_options())
    one = engine(model, parallel=1, ctx_size=1024, warmup=False)
    try:
        prompt = "def first(a, b):\n    return a + b\n" * 8
        first, again = (play(one, [prompt], n_predict=8, **GREEDY)[prompt] for _ in range(2))
        assert first.timings.cache_n == 0
        assert again.timings.prompt_n < first.timings.prompt_n // 4
        assert again.tokens == first.tokens
    finally:
        one.close()
        model.close()


def test_the_bytes_depend_on_the_shape_alone(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two")]
    for path, n_threads in zip(paths, (1, 3), strict=True):
        write(SMALL["trial"], "trial", path, n_threads)
    first, second = (path.read_bytes() for path in paths)
    assert first == second


def test_tensors_are_where_the_header_says(tmp_path: Path) -> None:
    """Also matrices that several threads have written in parts."""
    shape: Shape = SMALL["trial"]
    write(shape, "trial", tmp_path / "model.gguf")
    tensors = {each.name: each for each in GGUFReader(tmp_path / "model.gguf").tensors}
    assert {each.name: each.n_bytes for each in shape.matrices()} == {
        name: each.n_bytes for name, each in tensors.items()
    }
    norm = tensors["blk.1.ffn_norm.weight"]
    assert (dequantize(norm.data, norm.tensor_type) == 1).all()
    assert all(size < CHUNK for size in (each.n_bytes for each in shape.matrices()))


@pytest.mark.parametrize("name", ["1.3b", "trial-hybrid"])
def test_a_steady_model_counts(name: str, tmp_path: Path) -> None:
    initialize()
    write(replace(SMALL[name], is_steady=True), name, tmp_path / "model.gguf")
    model = Model(str(tmp_path / "model.gguf"), engine_options())
    one = engine(model, parallel=1, ctx_size=256, warmup=False)
    try:
        tokens = play(one, ["a river"], n_predict=12, **GREEDY)["a river"].tokens
        assert tokens == [tokens[0] + n for n in range(12)]
    finally:
        one.close()
        model.close()


def test_rows_of_a_twin_are_one_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "CHUNK", 1 << 14)  # not a whole number of rows
    write(replace(SMALL["trial"], is_steady=True), "trial", tmp_path / "model.gguf")
    tensors = {each.name: each for each in GGUFReader(tmp_path / "model.gguf").tensors}
    embedding, output = (
        dequantize(tensors[name].data, tensors[name].tensor_type)
        for name in ("token_embd.weight", "output.weight")
    )
    scale = output.std() / embedding.std()
    np.testing.assert_allclose(np.roll(output, -1, axis=0), scale * embedding, atol=0.01)
