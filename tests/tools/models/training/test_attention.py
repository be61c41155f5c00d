"""Attention by pieces is attention under a mask."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra `train` has it")

N = 130
PARTS = [[0, 50, 0, 0], [50, 90, 0, 50], [90, 97, 0, 50], [97, 130, 97, 97]]


def test_values_and_slopes_are_those_under_a_mask() -> None:
    from tools.models.training.attention import attend

    torch.manual_seed(0)
    mask = torch.zeros(N, N, dtype=torch.bool)
    for begin, end, seen_begin, seen_end in PARTS:
        mask[begin:end, begin:end] = torch.ones(end - begin, end - begin).tril().bool()
        mask[begin:end, seen_begin:seen_end] = True
    q, k, v = (torch.randn(N, 3, 64, requires_grad=True) for _ in range(3))
    found = attend(q, k, v, torch.tensor(PARTS))
    heads_first = [each.transpose(0, 1)[None] for each in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, mask)
    expected = expected[0].transpose(0, 1)
    assert torch.allclose(found, expected, atol=1e-5)
    slope = torch.randn(N, 3, 64)
    for ours, theirs in zip(
        torch.autograd.grad(found, (q, k, v), slope),
        torch.autograd.grad(expected, (q, k, v), slope),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_gpu_gives_the_same_results() -> None:
    from tools.models.training.attention import attend, block_mask

    torch.manual_seed(0)
    q, k, v = (torch.randn(N, 3, 64) for _ in range(3))
    parts = torch.tensor(PARTS)
    # FlexAttention computes no slopes on a processor.
    with torch.no_grad():
        found, expected = (attend(q, k, v, each) for each in (block_mask(parts, N), parts))
    assert torch.allclose(found, expected, atol=1e-5)
