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

from engine.worker.backend import initialize
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
    tokens = torch.tensor([TOKENS])
    positions = torch.arange(len(TOKENS) - 1)[None]
    with torch.no_grad():
        found = network(tokens[:, :-1], positions, tokens[:, 1:])
    return [float(each) for each in found[0]]


def test_losses_are_those_of_llama_cpp(network: Any, tmp_path: Path) -> None:
    from tools.models.training.network import named_tensors

    path = tmp_path / "network.gguf"
    recipe = replace(TALKER, decoder=SHAPE)
    write_model(recipe, path, named_tensors(network.state_dict(), SHAPE))
    # The training may multiply in bfloat16.
    assert losses(network) == pytest.approx(llama_losses(path), abs=0.08)


def test_lessons_in_one_row_are_as_alone(network: Any) -> None:
    from tools.models.training.network import visible_of

    alone = [[5, 300, 41, 9], [5, 300, 7, 12, 41]]
    row = torch.tensor([[5, 300, 41, 9, 7, 12, 41, 0]])
    positions = torch.tensor([[0, 1, 2, 3, 2, 3, 4, 5]])
    branches = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 0]])
    targets = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    assert visible_of(torch.zeros(1, 8)) is None
    with torch.no_grad():
        together = network(row, positions, targets, visible_of(branches))[0]
        for tokens, places in zip(alone, ([0, 1, 2, 3], [0, 1, 4, 5, 6]), strict=True):
            own = network(
                torch.tensor([tokens]), torch.arange(len(tokens))[None], targets[:, places]
            )
            assert torch.allclose(own[0], together[places], atol=0.02)


def test_parameters_come_back_from_their_file(network: Any, tmp_path: Path) -> None:
    from tools.models.training.network import named_tensors, state_of

    path = tmp_path / "network.gguf"
    recipe = replace(TALKER, decoder=SHAPE)
    write_model(recipe, path, named_tensors(network.state_dict(), SHAPE))
    found = state_of(read_tensors(path), SHAPE)
    assert found.keys() == network.state_dict().keys()
    for name, values in network.state_dict().items():
        assert torch.equal(found[name], values), name


def test_a_larger_network_begins_as_the_smaller_one(network: Any) -> None:
    from tools.models.training.network import Network, grown

    torch.manual_seed(4)
    larger = replace(SHAPE, n_embd=96, n_head=3, n_layer=3, n_ff=128)
    made = Network(larger, len(TALKER.vocabulary().tokens))
    made.load_state_dict(grown(network.state_dict(), made.state_dict()))
    # The training may multiply in bfloat16.
    assert losses(made) == pytest.approx(losses(network), abs=0.08)
    tokens = torch.tensor([TOKENS])
    positions = torch.arange(len(TOKENS) - 1)[None]
    made(tokens[:, :-1], positions, tokens[:, 1:]).sum().backward()
    # What is new learns: that which is read later, or which writes what is read.
    first, last = made.blk[0], made.blk[2]
    for writer in (first.attn_output, first.ffn_down):
        assert (writer.grad[SHAPE.n_embd :] != 0).any()
        assert (writer.grad[: SHAPE.n_embd] != 0).any()
    for writer in (last.attn_output, last.ffn_down):
        assert (writer.grad[: SHAPE.n_embd] != 0).any()


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
    tokens = torch.tensor([[*TOKENS[:5], 800, 801, 802]])
    positions = torch.arange(len(TOKENS) - 1)[None]
    with torch.no_grad():
        after = network(tokens[:, :-1], positions, tokens[:, 1:])[0]
    assert [float(each) for each in after[:4]] == pytest.approx(before[:4], abs=1e-5)


def test_each_parameter_is_trained_once(network: Any) -> None:
    found = [id(each) for each in [*network.matrices(), *network.others()]]
    assert sorted(found) == sorted(id(each) for each in network.parameters())
