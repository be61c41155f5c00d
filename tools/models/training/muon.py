"""Muon (Jordan et al., 2024): steps whose matrices have all singular values near one.

PyTorch's own Muon always iterates in bfloat16. On a processor without instructions for it, a step
of the shipped model's matrices took 2.8 s instead of 0.1 s.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tools.models.training.network import factor_type

MOMENTUM = 0.95
WEIGHT_DECAY = 0.05
ITERATIONS = 5
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""The coefficients of x, x cubed and x to the fifth, which raise small singular values in few
iterations."""


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer for matrices only. Steps are scaled so that Adam's rates can be used (Liu et
    al., "Muon is scalable for LLM training", 2025)."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    def step(self, closure: None = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                self._step(group["params"], group["lr"])

    def _step(self, parameters: list[nn.Parameter], lr: float) -> None:
        alike: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for matrix in parameters:
            n_out, n_in = matrix.shape
            alike[min(n_out, n_in), max(n_out, n_in)].append(matrix)
        for wide, matrices in alike.items():
            steps = orthogonal(torch.stack([self._direction(each) for each in matrices]))
            rate = lr * 0.2 * math.sqrt(wide[1])
            for matrix, each in zip(matrices, steps, strict=True):
                matrix.mul_(1 - lr * WEIGHT_DECAY)
                matrix.add_(each if matrix.shape == wide else each.T, alpha=-rate)

    def _direction(self, matrix: nn.Parameter) -> Tensor:
        """Returns the gradient with Nesterov's momentum, transposed if it is taller than wide."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
        direction = matrix.grad.lerp(momentum, MOMENTUM)
        return direction if matrix.shape[0] <= matrix.shape[1] else direction.T


def orthogonal(matrices: Tensor) -> Tensor:
    """Returns these matrices (number, outputs, inputs; not taller than wide) with singular values
    near one, in float32. Uses Newton and Schulz's iteration in the type with the faster
    multiplication."""
    first, third, fifth = POLYNOMIAL
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    x = x.to(factor_type(x.device.type))
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(square, square, square, beta=third, alpha=fifth), x, beta=first
        )
    return x.float()
