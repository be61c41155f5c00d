"""The network in PyTorch computes what llama.cpp does with its file."""

import ctypes
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as WeightType
from llama_cpp import llama_cpp as llama

from specllama.engine.worker.backend import initialize
from tools.models.gguf_file import read_tensors, write_model
from tools.models.recipes import TALKER

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra `train` has it")

SHAPE = replace(
    TALKER.decoder,
    n_embd=64,
    n_layer=2,
    n_head=2,
    n_head_kv=1,
    n_ff=96,
    n_ctx_train=64,
    weight_type=WeightType.F32,
    rotated=0.5,
)
TOKENS = [5, 300, 41, 41, 700, 9, 300, 12]


@pytest.fixture
def network() -> Any:
    from tools.models.training.network import Network

    torch.manual_seed(3)
    made = Network(SHAPE, len(TALKER.vocabulary().tokens))
    with torch.no_grad():
        # Sharp enough that a wrong order of channels is seen.
        made.token_embd.mul_(10)
        for layer in made.blk:
            layer.attn_q.mul_(6)
            layer.attn_output.mul_(2)
    return made


def losses(network: Any) -> list[float]:
    with torch.no_grad():
        return [float(each) for each in next_losses(network, *row(TOKENS))]


def next_losses(network: Any, *given: Any) -> Any:
    """The losses of the next tokens alone."""
    found, _ = network(*given, torch.tensor([], dtype=torch.long))
    return found


def row(tokens: list[int]) -> tuple[Any, Any, Any, Any]:
    """Returns the network's input for predicting each of these tokens from earlier ones."""
    all_of, n = torch.tensor(tokens), len(tokens) - 1
    return all_of[:-1], torch.arange(n), all_of[1:], torch.tensor([[0, n, 0, 0]])


def test_losses_are_those_of_llama_cpp(network: Any, tmp_path: Path) -> None:
    from tools.models.training.network import named_tensors

    path = tmp_path / "network.gguf"
    recipe = replace(TALKER, decoder=SHAPE)
    write_model(recipe, path, named_tensors(network.state_dict(), SHAPE))
    # The training may multiply in bfloat16.
    assert losses(network) == pytest.approx(llama_losses(path), abs=0.08)


def test_lessons_in_one_row_are_as_alone(network: Any) -> None:
    alone = [[5, 300, 41, 9, 8], [5, 300, 7, 12, 41, 3]]
    tokens = torch.tensor([41, 9, 5, 300, 41, 9, 7, 12, 41])
    positions = torch.tensor([0, 1, 0, 1, 2, 3, 2, 3, 4])
    targets = torch.tensor([9, 7, 300, 41, 9, 8, 12, 41, 3])
    # Another row comes first, then the common beginning of both, and then the rest of each.
    parts = torch.tensor([[0, 2, 0, 0], [2, 4, 2, 2], [4, 6, 2, 4], [6, 9, 2, 4]])
    with torch.no_grad():
        together = next_losses(network, tokens, positions, targets, parts)
        for each, places in zip(alone, ([2, 3, 4, 5], [2, 6, 7, 8]), strict=True):
            own = next_losses(network, *row(each))
            kept = own if each is alone[0] else own[[0, 2, 3, 4]]
            assert torch.allclose(kept, together[places], atol=0.02)


def test_parameters_come_back_from_their_file(network: Any, tmp_path: Path) -> None:
    from tools.models.training.network import named_tensors, state_of

    path = tmp_path / "network.gguf"
    recipe = replace(TALKER, decoder=SHAPE)
    write_model(recipe, path, named_tensors(network.state_dict(), SHAPE))
    found = state_of(read_tensors(path), SHAPE)
    kept = {
        name: values
        for name, values in network.state_dict().items()
        if not name.startswith("ahead.")
    }
    assert found.keys() == kept.keys()
    for name, values in kept.items():
        assert torch.equal(found[name], values), name


def test_channels_without_positions_are_as_anywhere() -> None:
    from tools.models.training.network import Network

    torch.manual_seed(5)
    still = Network(replace(SHAPE, rotated=0.0), len(TALKER.vocabulary().tokens))
    turned = Network(SHAPE, len(TALKER.vocabulary().tokens))
    turned.load_state_dict(still.state_dict())
    tokens, positions, targets, parts = row(TOKENS)
    with torch.no_grad():
        for network, same in ((still, True), (turned, False)):
            here, there = (
                next_losses(network, tokens, places, targets, parts)
                for places in (positions, positions * 5)
            )
            assert torch.allclose(here, there, atol=1e-3) == same


def test_a_larger_network_begins_as_the_smaller_one(network: Any) -> None:
    from tools.models.training.network import Network, grown

    torch.manual_seed(4)
    larger = replace(SHAPE, n_embd=96, n_head=3, n_layer=3, n_ff=128)
    made = Network(larger, len(TALKER.vocabulary().tokens))
    made.load_state_dict(grown(network.state_dict(), made.state_dict()))
    # The training may multiply in bfloat16.
    assert losses(made) == pytest.approx(losses(network), abs=0.08)
    next_losses(made, *row(TOKENS)).sum().backward()
    # New parts learn if they are read later, or if they write values that are read.
    first, new = made.blk[0], made.blk[1]
    for writer in (first.attn_output, first.ffn_down):
        assert (writer.grad[SHAPE.n_embd :] != 0).any()
        assert (writer.grad[: SHAPE.n_embd] != 0).any()
    for writer in (new.attn_output, new.ffn_down):
        assert not writer.any()
        assert (writer.grad[: SHAPE.n_embd] != 0).any()
    # It reads what the layer before it reads, and the old layers keep their order.
    assert torch.equal(made.blk[1].attn_q[:64, :64], network.blk[0].attn_q)
    assert torch.equal(made.blk[2].ffn_down[:64, :96], network.blk[1].ffn_down)


def llama_losses(path: Path) -> list[float]:
    initialize()
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    assert model is not None
    settings = llama.llama_context_default_params()
    settings.n_ctx = 64
    context = llama.llama_init_from_model(model, settings)
    try:
        n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        found = []
        for token, target in itertools.pairwise(TOKENS):
            one = (llama.llama_token * 1)(token)
            assert llama.llama_decode(context, llama.llama_batch_get_one(one, 1)) == 0
            row = llama.llama_get_logits(context)
            logits = np.ctypeslib.as_array(
                ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), (n_vocab,)
            ).astype(np.float64)
            found.append(float(np.logaddexp.reduce(logits) - logits[target]))
        return found
    finally:
        llama.llama_free(context)
        llama.llama_model_free(model)


def test_a_token_sees_none_that_comes_later(network: Any) -> None:
    before = losses(network)
    with torch.no_grad():
        after = next_losses(network, *row([*TOKENS[:5], 800, 801, 802]))
    assert [float(each) for each in after[:4]] == pytest.approx(before[:4], abs=1e-5)


def test_each_parameter_is_trained_once(network: Any) -> None:
    found = [id(each) for each in [*network.matrices(), *network.others()]]
    assert sorted(found) == sorted(id(each) for each in network.parameters())


def test_tokens_behind_the_next_one_are_predicted_for_answers(network: Any) -> None:
    from tools.models.training.network import AHEAD

    with torch.no_grad():
        for matrix in network.ahead:
            matrix.copy_(torch.eye(SHAPE.n_embd))
    tokens, positions, targets, parts = row([5, 300, 41, 41, 41, 9, 9])
    found, ahead = network(tokens, positions, targets, parts, torch.tensor([1, 2]))
    assert ahead.shape == (AHEAD, 2)
    # With the same matrices as for the next token it takes them for it.
    assert ahead[0, 0].item() == pytest.approx(found[1].item(), abs=0.08)
    assert ahead[1, 0].item() == pytest.approx(found[1].item(), abs=0.08)
    assert ahead[1, 1].item() != pytest.approx(found[2].item(), abs=0.08)
    ahead.sum().backward()
    assert all(matrix.grad.any() for matrix in network.ahead)
