"""Shapes of models: their parameters, layers and memory."""

import math

import numpy as np
import pytest
from gguf import GGMLQuantizationType as WeightType

from tools.models.large_shapes import DENSE_8B, HYBRID_9B, SHAPES, Matrix


def test_the_dense_model_has_eight_billion_weights_in_five_gigabytes() -> None:
    found = list(DENSE_8B.matrices())
    assert sum(math.prod(each.shape) for each in found) == 8_030_261_248
    assert 4.5e9 < sum(each.n_bytes for each in found) < 5.2e9


def test_the_hybrid_model_has_nine_billion_weights_in_the_tensors_of_qwen() -> None:
    """llama.cpp reports 8.95 B parameters of Qwen3.5 9B, and 177 tensors that are not quantized of
    427."""
    found = list(HYBRID_9B.matrices())
    assert sum(math.prod(each.shape) for each in found) == 8_953_803_264
    assert 5.2e9 < sum(each.n_bytes for each in found) < 6e9
    assert len(found) == 427
    assert sum(each.weight_type == WeightType.F32 for each in found) == 177


@pytest.mark.parametrize("name", SHAPES)
def test_names_are_unique(name: str) -> None:
    names = [each.name for each in SHAPES[name].matrices()]
    assert len(set(names)) == len(names)


def test_every_fourth_layer_of_a_hybrid_has_full_attention() -> None:
    names = {each.name for each in HYBRID_9B.matrices()}
    full = [n for n in range(HYBRID_9B.n_layer) if f"blk.{n}.attn_q.weight" in names]
    linear = [n for n in range(HYBRID_9B.n_layer) if f"blk.{n}.ssm_a" in names]
    assert full == [3, 7, 11, 15, 19, 23, 27, 31]
    assert sorted(full + linear) == list(range(HYBRID_9B.n_layer))


def test_states_of_linear_attention_shrink_at_useful_rates() -> None:
    """A factor of a state per token is less than 1, otherwise states would explode. By the decay
    alone, the heads remember from one token to a thousand."""
    a, dt = _values("blk.0.ssm_a"), _values("blk.0.ssm_dt.bias")
    factors = np.exp(a * np.logaddexp(0, dt))
    assert (np.diff(factors) < 0).all()
    assert 1 / -np.log(factors[0]) == pytest.approx(1000)
    assert 1 / -np.log(factors[-1]) == pytest.approx(1 / 1.6)


def _values(name: str) -> np.ndarray:
    found: list[Matrix] = [each for each in HYBRID_9B.matrices() if each.name == name]
    assert found[0].shape == (HYBRID_9B.n_value_head,)
    return np.array(found[0].values)
