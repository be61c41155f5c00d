"""Muon's steps equal PyTorch's, up to rounding."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra `train` has it")

SHAPES = ((8, 8), (24, 8), (8, 24), (8, 8), (16, 40))


def test_steps_are_those_of_pytorch() -> None:
    from tools.models.training import muon

    torch.manual_seed(1)
    first = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    second = [torch.nn.Parameter(each.detach().clone()) for each in first]
    begun = [each.detach().clone() for each in first]
    own = muon.Muon(first, lr=0.01)
    other = torch.optim.Muon(
        second, lr=0.01, weight_decay=muon.WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(5):
        for each, same in zip(first, second, strict=True):
            each.grad = torch.randn(each.shape)
            same.grad = each.grad.clone()
        own.step()
        other.step()
    for each, same, before in zip(first, second, begun, strict=True):
        went = torch.linalg.norm(same - before)
        assert torch.linalg.norm(each - same) < 0.03 * went < went


def test_singular_values_come_near_to_one() -> None:
    from tools.models.training.muon import orthogonal

    torch.manual_seed(2)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 16, 48) * 1e-3))
    assert values.min() > 0.5
    assert values.max() < 1.5
