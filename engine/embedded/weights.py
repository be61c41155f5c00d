"""Random weights for a llama-architecture decoder, the same ones on every machine.

Only PCG64's integers, exact float32 arithmetic and correctly rounded square roots are used;
a normal distribution would need the C library's logarithm.
"""

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np
from gguf import GGMLQuantizationType as WeightType
from numpy.typing import NDArray

from engine.embedded.recipes import Decoder
from engine.embedded.tokenizer import Vocabulary

Matrix = NDArray[np.float32]

# Attention that looks at few positions, rather than at the average of all, keeps long
# generations from settling into a short loop.
ATTENTION_LOGIT_STD = 3.0
FORBIDDEN = -12.0
"""Logit bias, in standard deviations, of tokens that are no text by themselves."""


def tensors(
    decoder: Decoder, vocabulary: Vocabulary, seed: int
) -> Iterator[tuple[str, Matrix, WeightType]]:
    """Name, values (output features x input features, as GGUF stores them) and type of each."""
    rng = np.random.Generator(np.random.PCG64(seed))
    n_embd, n_ff = decoder.n_embd, decoder.n_ff
    n_kv = n_embd // decoder.n_head * decoder.n_head_kv

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> Matrix:
        """Uniform values that map an input of unit variance to an output of `gain` squared."""
        values = rng.random((n_out, n_in), dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(gain * sqrt(12 / n_in))
        return values

    def writer(n_in: int) -> Matrix:
        """A matrix that writes into the residual stream, all of it but the constant channel."""
        values = matrix(n_embd, n_in, decoder.context_gain)
        values[0] = 0
        return values

    def norm(first: float) -> Matrix:
        """The scales of a layer norm. `first` is that of the constant channel."""
        scales = np.ones(n_embd, dtype=np.float32)
        scales[0] = first
        return scales

    yield from _vocabulary_tensors(decoder, vocabulary, matrix)
    yield "output_norm.weight", norm(1.0), WeightType.F32
    # Query and key are equally sharp, and the logit of a head is divided by sqrt(head size).
    sharp = sqrt(ATTENTION_LOGIT_STD)
    for layer in range(decoder.n_layer):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", norm(0.0), WeightType.F32
        yield block + "attn_q.weight", matrix(n_embd, n_embd, sharp), decoder.weight_type
        yield block + "attn_k.weight", matrix(n_kv, n_embd, sharp), decoder.weight_type
        yield block + "attn_v.weight", matrix(n_kv, n_embd), decoder.weight_type
        yield block + "attn_output.weight", writer(n_embd), decoder.weight_type
        yield block + "ffn_norm.weight", norm(0.0), WeightType.F32
        yield block + "ffn_gate.weight", matrix(n_ff, n_embd), decoder.weight_type
        yield block + "ffn_up.weight", matrix(n_ff, n_embd), decoder.weight_type
        yield block + "ffn_down.weight", writer(n_ff), decoder.weight_type


def _vocabulary_tensors(
    decoder: Decoder, vocabulary: Vocabulary, matrix: Callable[..., Matrix]
) -> Iterator[tuple[str, Matrix, WeightType]]:
    n_vocab, n_embd = len(vocabulary.tokens), decoder.n_embd
    forbidden = np.ones(n_vocab, dtype=bool)
    forbidden[vocabulary.texts] = False
    if decoder.tied:
        # A token of no length is never near the final state. The others are short beside what
        # the layers write, or every token would be followed by itself.
        embedding = matrix(n_vocab, n_embd, decoder.logit_std)
        embedding[forbidden] = 0
        yield "token_embd.weight", embedding, decoder.weight_type
        return
    # Channel 0 is the same for every token and no layer touches it, so that the first column
    # of the output matrix is a bias, which this architecture has no tensor for.
    embedding = matrix(n_vocab, n_embd, sqrt(n_embd))
    embedding[:, 0] = sqrt(n_embd)
    yield "token_embd.weight", embedding, decoder.weight_type
    output = matrix(n_vocab, n_embd, decoder.logit_std)
    bias = np.where(forbidden, np.float32(FORBIDDEN), np.float32(0))
    bias[[vocabulary.special_ids[role] for role in ("bos", "eos")]] = decoder.end_bias
    output[:, 0] = bias * np.float32(decoder.logit_std / sqrt(n_embd))
    yield "output.weight", output, decoder.weight_type
