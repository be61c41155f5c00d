"""BERT-architecture models, which embed or rerank, for tests. All weights are random."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from gguf import GGUFWriter, PoolingType
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

NORM_EPSILON = 1e-12


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The shape of a BERT encoder (Devlin et al., 2018), with layer norms after the layers.

    Each of the `n_ctx_train` positions has a learned vector. `head` adds the output of a
    cross-encoder: a dense layer with tanh, then one number.
    """

    n_embd: int
    n_layer: int
    n_head: int
    n_ff: int
    n_ctx_train: int
    pooling: PoolingType
    head: bool = False
    rerank_template: str | None = None


def add_shape(writer: GGUFWriter, encoder: Encoder) -> None:
    """Writes the metadata of the architecture."""
    writer.add_context_length(encoder.n_ctx_train)
    writer.add_embedding_length(encoder.n_embd)
    writer.add_block_count(encoder.n_layer)
    writer.add_feed_forward_length(encoder.n_ff)
    writer.add_head_count(encoder.n_head)
    writer.add_layer_norm_eps(NORM_EPSILON)
    writer.add_causal_attention(False)
    writer.add_pooling_type(encoder.pooling)
    writer.add_token_type_count(2)
    if encoder.rerank_template is not None:
        writer.add_string("tokenizer.chat_template.rerank", encoder.rerank_template)


def tensors(encoder: Encoder, n_vocab: int, seed: int) -> Iterator[tuple[str, Matrix]]:
    """Yields name and values (output features x input features) of each tensor."""
    rng = np.random.Generator(np.random.PCG64(seed))
    n_embd, n_ff = encoder.n_embd, encoder.n_ff

    def matrix(n_out: int, n_in: int) -> Matrix:
        """Returns uniform values that map an input of unit variance to an output of unit
        variance."""
        values = rng.random((n_out, n_in), dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(sqrt(12 / n_in))
        return values

    def vector(n: int, around: float) -> Matrix:
        values = rng.random(n, dtype=np.float32)
        values *= np.float32(0.2)
        values += np.float32(around - 0.1)
        return values

    def norm(name: str) -> Iterator[tuple[str, Matrix]]:
        yield f"{name}.weight", vector(n_embd, 1.0)
        yield f"{name}.bias", vector(n_embd, 0.0)

    yield "token_embd.weight", matrix(n_vocab, n_embd)
    yield "token_types.weight", matrix(2, n_embd)
    yield "position_embd.weight", matrix(encoder.n_ctx_train, n_embd)
    yield from norm("token_embd_norm")
    for layer in range(encoder.n_layer):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}{name}.weight", matrix(n_embd, n_embd)
            yield f"{block}{name}.bias", vector(n_embd, 0.0)
        yield from norm(block + "attn_output_norm")
        yield block + "ffn_up.weight", matrix(n_ff, n_embd)
        yield block + "ffn_up.bias", vector(n_ff, 0.0)
        yield block + "ffn_down.weight", matrix(n_embd, n_ff)
        yield block + "ffn_down.bias", vector(n_embd, 0.0)
        yield from norm(block + "layer_output_norm")
    if encoder.head:
        yield "cls.weight", matrix(n_embd, n_embd)
        yield "cls.bias", vector(n_embd, 0.0)
        yield "cls.output.weight", matrix(1, n_embd)
        yield "cls.output.bias", vector(1, 0.0)
