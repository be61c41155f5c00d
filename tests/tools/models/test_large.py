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
from tools.models.large import CHUNK, DENSE_8B, SHAPES, Shape, blocks, matrices, write

SMALL = {
    name: replace(SHAPES[name], n_layer=2, n_vocab=4096, n_embd=256, n_head=2, n_head_kv=1)
    for name in ("1.3b", "trial", "trial-moe")
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


def test_the_dense_model_has_eight_billion_weights_in_five_gigabytes() -> None:
    found = list(matrices(DENSE_8B))
    assert sum(int(np.prod(each.shape)) for each in found) == 8_030_261_248
    assert 4.5e9 < sum(each.n_bytes for each in found) < 5.2e9


@pytest.mark.parametrize("name", SMALL)
def test_the_logits_of_a_file_are_finite_and_spread(name: str, tmp_path: Path) -> None:
    initialize()
    write(SMALL[name], name, tmp_path / "model.gguf")
    options = engine_options(ctx_size=256)
    model = Model(str(tmp_path / "model.gguf"), options)
    context = Context(model, options, 1, True)
    try:
        context.evaluate_any()
        row = context.logits(0)
        assert np.isfinite(row).all()
        assert 1 < row.std() < 8
    finally:
        context.close()
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
    assert {each.name: each.n_bytes for each in matrices(shape)} == {
        name: each.n_bytes for name, each in tensors.items()
    }
    norm = tensors["blk.1.ffn_norm.weight"]
    assert (dequantize(norm.data, norm.tensor_type) == 1).all()
    assert all(size < CHUNK for size in (each.n_bytes for each in matrices(shape)))
