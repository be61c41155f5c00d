"""Random weights for a llama-architecture decoder, equal on every machine.

They are computed only from PCG64's integers, exact float32 arithmetic and correctly rounded square
roots. A normal distribution would need the C library's logarithm.
"""

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np
from gguf import GGMLQuantizationType as WeightType
from numpy.typing import NDArray

from tools.models.recipes import Decoder
from tools.models.tokenizer import Vocabulary

Matrix = NDArray[np.float32]

# Attention to few positions, instead of an average of all, keeps long generations from ending in a
# short loop.
ATTENTION_LOGIT_STD = 3.0
STEP_BIAS = -2.25
"""softplus(-2.25) is 0.1."""
FORBIDDEN = -12.0
"""Logit bias, in standard deviations, of tokens that are no text by themselves."""


Tensor = tuple[str, Matrix, WeightType]


class _Maker:
    """Makes the values of one decoder's tensors, in their order."""

    def __init__(self, decoder: Decoder, seed: int) -> None:
        self.decoder = decoder
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def matrix(self, n_out: int, n_in: int, gain: float = 1.0) -> Matrix:
        """Returns uniform values that map an input of unit variance to an output of the variance
        `gain` squared."""
        values = self._rng.random((n_out, n_in), dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(gain * sqrt(12 / n_in))
        return values

    def writer(self, n_in: int) -> Matrix:
        """Returns a matrix that writes into all channels of the residual stream except the constant
        one."""
        values = self.matrix(self.decoder.n_embd, n_in, self.decoder.context_gain)
        values[0] = 0
        return values

    def norm(self, first: float) -> Matrix:
        """Returns the scales of a layer norm. `first` is the scale of the constant channel."""
        scales = np.ones(self.decoder.n_embd, dtype=np.float32)
        scales[0] = first
        return scales


def tensors(decoder: Decoder, vocabulary: Vocabulary, seed: int) -> Iterator[Tensor]:
    """Yields name, values (output features x input features, as in GGUF) and type of each
    tensor."""
    make = _Maker(decoder, seed)
    yield from _vocabulary_tensors(decoder, vocabulary, make.matrix)
    yield "output_norm.weight", make.norm(1.0), WeightType.F32
    for layer in range(decoder.n_layer):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", make.norm(0.0), WeightType.F32
        if decoder.is_mamba(layer):
            yield from _mamba(make, block)
        else:
            yield from _attention(make, block)
        if decoder.architecture != "mamba":
            yield from _feed_forward(make, block)


def _attention(make: _Maker, block: str) -> Iterator[Tensor]:
    decoder = make.decoder
    n_embd, kind = decoder.n_embd, decoder.weight_type
    n_kv = n_embd // decoder.n_head * decoder.n_head_kv
    # Query and key are equally sharp, and a head's logit is divided by sqrt(head size).
    sharp = sqrt(ATTENTION_LOGIT_STD)
    yield block + "attn_q.weight", make.matrix(n_embd, n_embd, sharp), kind
    yield block + "attn_k.weight", make.matrix(n_kv, n_embd, sharp), kind
    yield block + "attn_v.weight", make.matrix(n_kv, n_embd), kind
    yield block + "attn_output.weight", make.writer(n_embd), kind
    if decoder.architecture == "gemma3":
        scales = np.full(n_embd // decoder.n_head, sharp, dtype=np.float32)
        yield block + "attn_q_norm.weight", scales, WeightType.F32
        yield block + "attn_k_norm.weight", scales, WeightType.F32
        yield block + "post_attention_norm.weight", make.norm(0.0), WeightType.F32


def _feed_forward(make: _Maker, block: str) -> Iterator[Tensor]:
    n_embd, n_ff, kind = make.decoder.n_embd, make.decoder.n_ff, make.decoder.weight_type
    yield block + "ffn_norm.weight", make.norm(0.0), WeightType.F32
    yield block + "ffn_gate.weight", make.matrix(n_ff, n_embd), kind
    yield block + "ffn_up.weight", make.matrix(n_ff, n_embd), kind
    yield block + "ffn_down.weight", make.writer(n_ff), kind
    if make.decoder.architecture == "gemma3":
        yield block + "post_ffw_norm.weight", make.norm(0.0), WeightType.F32


def _mamba(make: _Maker, block: str) -> Iterator[Tensor]:
    """Yields a selective state space (Gu and Dao, 2023), initialized as in that paper: the states
    decay at the rates 1, 2, 3..., times a step of about 0.1 that depends on the token."""
    decoder, shape = make.decoder, make.decoder.state_space
    n_inner, n_state, rank = 2 * decoder.n_embd, shape.n_state, shape.rank
    kind, f32 = decoder.weight_type, WeightType.F32
    yield block + "ssm_in.weight", make.matrix(2 * n_inner, decoder.n_embd), kind
    yield block + "ssm_conv1d.weight", make.matrix(n_inner, shape.n_conv), f32
    yield block + "ssm_conv1d.bias", np.zeros(n_inner, np.float32), f32
    yield block + "ssm_x.weight", make.matrix(rank + 2 * n_state, n_inner), kind
    yield block + "ssm_dt.weight", make.matrix(n_inner, rank), kind
    yield block + "ssm_dt.bias", np.full(n_inner, STEP_BIAS, np.float32), f32
    rates = np.arange(1, n_state + 1, dtype=np.float32)
    yield block + "ssm_a", np.tile(-rates, (n_inner, 1)), f32
    yield block + "ssm_d", np.ones(n_inner, np.float32), f32
    yield block + "ssm_out.weight", make.writer(n_inner), kind
    if decoder.architecture == "jamba":
        yield block + "ssm_dt_norm.weight", np.ones(rank, np.float32), f32
        yield block + "ssm_b_norm.weight", np.ones(n_state, np.float32), f32
        yield block + "ssm_c_norm.weight", np.ones(n_state, np.float32), f32


def _vocabulary_tensors(
    decoder: Decoder, vocabulary: Vocabulary, matrix: Callable[..., Matrix]
) -> Iterator[tuple[str, Matrix, WeightType]]:
    n_vocab, n_embd = len(vocabulary.tokens), decoder.n_embd
    forbidden = np.ones(n_vocab, dtype=bool)
    forbidden[vocabulary.texts] = False
    if decoder.tied:
        # A token with a zero vector is never near the final state. The other vectors are short
        # relative to the layers' outputs, otherwise every token would be followed by itself.
        embedding = matrix(n_vocab, n_embd, decoder.logit_std)
        embedding[forbidden] = 0
        yield "token_embd.weight", embedding, decoder.weight_type
        return
    # Channel 0 is the same for every token, and no layer changes it, so the first column of the
    # output matrix is a bias, for which this architecture has no tensor.
    embedding = matrix(n_vocab, n_embd, sqrt(n_embd))
    embedding[:, 0] = sqrt(n_embd)
    if decoder.architecture == "gemma3":
        embedding /= np.float32(sqrt(n_embd))  # Gemma multiplies by this
    yield "token_embd.weight", embedding, decoder.weight_type
    output = matrix(n_vocab, n_embd, decoder.logit_std)
    bias = np.where(forbidden, np.float32(FORBIDDEN), np.float32(0))
    bias[[vocabulary.special_ids[role] for role in ("bos", "eos")]] = decoder.end_bias
    output[:, 0] = bias * np.float32(decoder.logit_std / sqrt(n_embd))
    yield "output.weight", output, decoder.weight_type
