"""Attention over rows that are concatenated without padding.

Blocks that no token sees are not computed. On a GPU, FlexAttention leaves them out (Dong et al.,
"Flex Attention", 2024). On a processor, PyTorch's kernel computes each needed piece, and the
results are combined by their sums of exponentials (Liu et al., "Ring Attention with Blockwise
Transformers", 2023). For rows whose lessons share a prompt, this costs a quarter of a mask over the
whole row.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Piece = tuple[slice, slice, bool]


def attend(q: Tensor, k: Tensor, v: Tensor, parts: Tensor | BlockMask) -> Tensor:
    """Returns what each token of `q` sees of `k` and `v` (tokens, heads, channels).

    Each of the `parts` has the begin and end of tokens that see earlier tokens of the same part,
    and the begin and end of other tokens that all of them see. The parts are disjoint and cover all
    tokens. On a GPU, `parts` is the result of `block_mask`.
    """
    if isinstance(parts, Tensor):
        return attend_by_pieces(q, k, v, parts)[0]
    seen = flex_attention(*_heads_first(q, k, v), block_mask=parts)
    return seen[0].transpose(0, 1)


def block_mask(
    parts: Tensor, n: int, make: Callable[..., BlockMask] = create_block_mask
) -> BlockMask:
    """Returns which of the `n` tokens see which, on the device of `parts`. A compiled `make` is
    faster."""
    lengths = parts[:, 1] - parts[:, 0]
    begins, seen_begins, seen_ends = (
        torch.repeat_interleave(parts[:, i], lengths, output_size=n) for i in (0, 2, 3)
    )

    def sees(_: Tensor, __: Tensor, one: Tensor, other: Tensor) -> Tensor:
        before = (other <= one) & (other >= begins[one])
        return before | ((other >= seen_begins[one]) & (other < seen_ends[one]))

    return make(sees, None, None, n, n, device=parts.device)


@torch.library.custom_op("specllama::attend", mutates_args=())  # type: ignore[untyped-decorator]
def attend_by_pieces(q: Tensor, k: Tensor, v: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what each token sees, and the logarithms of its sums of exponentials (tokens, heads).
    float32 makes small pieces twice as fast as bfloat16."""
    out, sums = _empty(q)
    for own, seen, causal in _pieces(parts):
        values, logs = _tokens_first(
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *_heads_first(q[own], k[seen], v[seen]), 0.0, causal
            )
        )
        if causal:
            out[own], sums[own] = values, logs
            continue
        both = torch.logaddexp(sums[own], logs)
        before, now = ((each - both).exp()[..., None] for each in (sums[own], logs))
        out[own], sums[own] = before * out[own] + now * values, both
    return out, sums


@attend_by_pieces.register_fake  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    return _empty(q)


@torch.library.custom_op("specllama::attend_backward", mutates_args=())  # type: ignore[untyped-decorator]
def attend_backward(
    slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, parts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of `q`, `k` and `v` for the gradient of `out`."""
    dq, dk, dv = (each.new_zeros(each.shape) for each in (q, k, v))
    for own, seen, causal in _pieces(parts):
        heads_first = _heads_first(slope[own], q[own], k[seen], v[seen], out[own], sums[own])
        found = _tokens_first(
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *heads_first, 0.0, causal
            )
        )
        for total, each in zip((dq[own], dk[seen], dv[seen]), found, strict=True):
            total += each
    return dq, dk, dv


@attend_backward.register_fake  # type: ignore[untyped-decorator]
def _(
    slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, parts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(
    ctx: torch.autograd.function.FunctionCtx,
    inputs: tuple[Tensor, ...],
    output: tuple[Tensor, ...],
) -> None:
    q, k, v, parts = inputs
    ctx.save_for_backward(q, k, v, *output, parts)


def _slopes(
    ctx: torch.autograd.function.FunctionCtx, slope: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    """Returns the gradients. The logarithms of the sums are only used here and have no gradient."""
    return (*attend_backward(slope.contiguous(), *ctx.saved_tensors), None)


attend_by_pieces.register_autograd(_slopes, setup_context=_remember)


def _pieces(parts: Tensor) -> Iterator[Piece]:
    """Yields which tokens see which, and whether only earlier ones: each part itself comes
    first."""
    for begin, end, seen_begin, seen_end in parts.tolist():
        own = slice(begin, end)
        yield own, own, True
        if seen_end > seen_begin:
            yield own, slice(seen_begin, seen_end), False


def _empty(q: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2])


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """Arranges tensors for the kernel: 1, heads, tokens, and channels if there are any."""
    return [each.transpose(0, 1)[None] for each in tensors]


def _tokens_first(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [each[0].transpose(0, 1) for each in tensors]
