"""llama's decoder in PyTorch, with GGUF's names.

It multiplies in bfloat16 or float32, whichever is faster on the processor.

A position rotates pairs of a head's channels. Here, a pair is a channel of the first half and one
of the second half, which is fast; in llama.cpp it is two neighbours. The exported rows are in
llama.cpp's order.
"""

import math
import time
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.flex_attention import BlockMask

from tools.models.gguf_file import NORM_EPSILON, ROPE_BASE, ROPE_FACTORS, rope_factors
from tools.models.recipes import Decoder
from tools.models.training.attention import attend
from tools.models.weights import Tensor as NamedTensor


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Decoder, factors: torch.dtype) -> None:
        super().__init__()
        n, head = shape.n_embd, shape.n_embd // shape.n_head
        self.shape = shape
        self.factors = factors
        self.attn_norm = nn.Parameter(torch.ones(n))
        self.attn_q = _matrix(n, n)
        self.attn_k = _matrix(head * shape.n_head_kv, n)
        self.attn_v = _matrix(head * shape.n_head_kv, n)
        self.attn_output = _matrix(n, n, 1 / math.sqrt(2 * shape.n_layer))
        self.ffn_norm = nn.Parameter(torch.ones(n))
        self.ffn_gate = _matrix(shape.n_ff, n)
        self.ffn_up = _matrix(shape.n_ff, n)
        self.ffn_down = _matrix(n, shape.n_ff, 1 / math.sqrt(2 * shape.n_layer))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, parts: Tensor | BlockMask) -> Tensor:
        kind = self.factors
        heads, shared = self.shape.n_head, self.shape.n_head_kv
        h = _normed(x, self.attn_norm)
        q, k, v = (
            _linear(h, matrix, kind).float().unflatten(-1, (n, -1))
            for matrix, n in ((self.attn_q, heads), (self.attn_k, shared), (self.attn_v, shared))
        )
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        if shared < heads:
            k, v = (each.repeat_interleave(heads // shared, 1) for each in (k, v))
        if x.is_cuda:
            q, k, v = (each.to(kind) for each in (q, k, v))
        seen = attend(q, k, v, parts)
        x = x + _linear(seen.flatten(1), self.attn_output, kind)
        h = _normed(x, self.ffn_norm)
        wide = F.silu(_linear(h, self.ffn_gate, kind)) * _linear(h, self.ffn_up, kind)
        return x + _linear(wide, self.ffn_down, kind)


AHEAD = 2
"""The number of tokens after the next one that the training predicts, too. A model that has to
predict them attends to whole words when it copies, not only to their first token (Gloeckle et al.,
"Better & faster large language models via multi-token prediction", 2024). The model's file has no
trace of this."""


class Network(nn.Module):  # type: ignore[misc]
    """Created on the CPU; `device` is the type of the device that it will be moved to."""

    def __init__(self, shape: Decoder, n_vocab: int, device: str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        self.factors = factor_type(device)
        self.token_embd = nn.Parameter(torch.randn(n_vocab, shape.n_embd) * 0.02)
        self.blk = nn.ModuleList(Layer(shape, self.factors) for _ in range(shape.n_layer))
        self.output_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.ahead = nn.ParameterList(torch.zeros(shape.n_embd, shape.n_embd) for _ in range(AHEAD))
        head = shape.n_embd // shape.n_head
        rates = ROPE_BASE ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
        rates = rates / torch.from_numpy(rope_factors(shape))
        self.register_buffer("rates", rates, persistent=False)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        parts: Tensor | BlockMask,
        answers: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Returns the loss of each token of `targets`, for concatenated rows, and the losses of the
        `AHEAD` tokens after it at the places `answers`, which are not at the end. `parts`
        determines which tokens see which: see `attend`."""
        angles = positions[:, None, None].float() * self.rates
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(tokens, self.token_embd)
        for layer in self.blk:
            x = layer(x, cos, sin, parts)
        x = _normed(x, self.output_norm)
        known = x[answers]
        return self._losses(x, targets), torch.stack(
            [
                self._losses(_linear(known, matrix, self.factors), targets[answers + i])
                for i, matrix in enumerate(self.ahead, 1)
            ]
        )

    def _losses(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = _linear(x, self.token_embd, self.factors).float()
        return F.cross_entropy(logits, targets, reduction="none")

    def matrices(self) -> list[nn.Parameter]:
        """Returns the parameters that are matrices between vectors."""
        return [*(each for each in self.blk.parameters() if each.dim() == 2), *self.ahead]

    def others(self) -> list[nn.Parameter]:
        vectors = [each for each in self.blk.parameters() if each.dim() == 1]
        return [self.token_embd, self.output_norm, *vectors]


def named_tensors(state: dict[str, Tensor], shape: Decoder) -> Iterator[NamedTensor]:
    """Yields the tensors for a GGUF file."""
    from gguf import GGMLQuantizationType as WeightType

    if shape.rotated < 1:
        yield ROPE_FACTORS, rope_factors(shape), WeightType.F32
    for name, values in state.items():
        if name.startswith("ahead."):
            continue
        kind = shape.weight_type if values.dim() == 2 else WeightType.F32
        if name.endswith("attn_q"):
            values = _neighbours(values, shape.n_head)
        elif name.endswith("attn_k"):
            values = _neighbours(values, shape.n_head_kv)
        yield f"{name}.weight", values.float().numpy(), kind


def state_of(
    tensors: Iterable[tuple[str, NDArray[np.float32]]], shape: Decoder
) -> dict[str, Tensor]:
    """Returns the parameters from which `named_tensors` made these tensors, up to rounding. Of
    `shape`, only the size of a head is used."""
    state = {}
    for name, values in tensors:
        if name == ROPE_FACTORS:
            continue
        parameter, found = name.removesuffix(".weight"), torch.tensor(values)
        if parameter.endswith(("attn_q", "attn_k")):
            found = _halves(found, found.shape[0] * shape.n_head // shape.n_embd)
        state[parameter] = found
    return state


def grown(small: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the parameters `fresh` of a network that is wider or deeper than that of `small`,
    changed so that it computes the same.

    New parts read anything and write nothing, until they have learnt to. New layers are inserted
    between the old ones, and read what the layer before them reads (Wu et al., "LLaMA Pro", 2024).
    Heads must have the same size in both.
    """
    n_small, n = (each["output_norm"].shape[0] for each in (small, fresh))
    n_layers = _n_layers(small), _n_layers(fresh)
    state = {}
    for name, values in fresh.items():
        if name.startswith("ahead."):
            state[name] = values
            continue
        place = state[name] = _quiet(name, values)
        origin, is_new = _origin(name, *n_layers)
        if is_new and place.dim() == 2 and not name.endswith(READERS):
            continue
        known = small[origin]
        if known.dim() == 1:
            # The mean square of a token's channels becomes smaller by the channels that are zero.
            known = known * math.sqrt(n_small / n)
            place.fill_(float(known.mean()))
        place[tuple(slice(each) for each in known.shape)] = known
    return state


def _n_layers(state: dict[str, Tensor]) -> int:
    return sum(name.endswith("attn_norm") for name in state)


def _origin(name: str, n_small: int, n: int) -> tuple[str, bool]:
    """Returns the name that a parameter of the network with `n` layers has in the one with
    `n_small`, and whether its layer is a new one, inserted after that layer."""
    if not name.startswith("blk."):
        return name, False
    _, layer, rest = name.split(".")
    origin = int(layer) * n_small // n
    return f"blk.{origin}.{rest}", origin == (int(layer) - 1) * n_small // n


READERS = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
"""The matrices that read from the residual stream; the others write to it."""


def _quiet(name: str, fresh: Tensor) -> Tensor:
    return fresh.clone() if fresh.dim() == 1 or name.endswith(READERS) else torch.zeros_like(fresh)


@cache
def factor_type(device: str) -> torch.dtype:
    """Returns the type in which matrices are multiplied. On a processor without instructions for
    bfloat16, bfloat16 is slower."""
    if device != "cpu":
        return torch.bfloat16
    took = {}
    for kind in (torch.float32, torch.bfloat16):
        left, right = torch.ones(1024, 512, dtype=kind), torch.ones(512, 512, dtype=kind)
        F.linear(left, right)
        began = time.perf_counter()
        for _ in range(5):
            F.linear(left, right)
        took[kind] = time.perf_counter() - began
    return min(took, key=lambda kind: took[kind])


def _matrix(n_out: int, n_in: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(n_out, n_in) * (gain / math.sqrt(n_in)))


def _linear(x: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
    return F.linear(x.to(kind), weight.to(kind))


def _normed(x: Tensor, scales: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON) * scales


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


def _neighbours(weight: Tensor, n_heads: int) -> Tensor:
    """Returns the rows of a query or key matrix with the channels of a pair next to each other."""
    halves = weight.view(n_heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def _halves(weight: Tensor, n_heads: int) -> Tensor:
    """Inverts `_neighbours`."""
    pairs = weight.view(n_heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
