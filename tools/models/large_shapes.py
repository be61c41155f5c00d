"""The shapes of `large.py`: the tensors and the metadata of each architecture, with llama.cpp's
names.

`Shape` is a dense decoder. Its subclasses override the parts of a layer, and the metadata, in which
their architectures differ.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from gguf import GGML_QUANT_SIZES, GGUFWriter, LlamaFileType
from gguf import GGMLQuantizationType as WeightType

from tools.models.gguf_file import NORM_EPSILON

LOGIT_STD, MIXER_GAIN, FEED_FORWARD_GAIN = 4.0, 0.03, 0.5
"""The standard deviation of logits, and the strength of a layer's output relative to a token's own
vector, whose elements have a standard deviation of 1."""
STEADY = "-steady"
"""The suffix of models whose greedy text is a fixed sequence: the next token has the next number,
however logits are rounded. So proposals from a text in the prompt are right."""


EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class Matrix:
    """A tensor of random weights, or a vector of given `values`. `shape` has rows first, as in
    numpy. `std` is the standard deviation of random weights. With `twin`, the weights are those of
    that matrix, scaled to this `std`, one row further."""

    name: str
    shape: tuple[int, ...]
    weight_type: WeightType
    std: float = 0.0
    values: tuple[float, ...] = ()
    twin: str = ""

    @property
    def n_bytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.weight_type]
        return math.prod(self.shape) // int(block) * int(size)


def _vector(name: str, *values: float) -> Matrix:
    return Matrix(name, (len(values),), WeightType.F32, values=values)


def _ones(name: str, n: int) -> Matrix:
    return _vector(f"{name}.weight", *[1.0] * n)


def _normal(name: str, *shape: int, kind: WeightType, gain: float = 1.0) -> Matrix:
    """Returns a matrix whose products with vectors are `gain` times as large as these."""
    return Matrix(f"{name}.weight", shape, kind, gain / math.sqrt(shape[-1]))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a dense decoder like Llama. `weight_type` is the type of most matrices. `better`
    is the type of the output, of values, and of half of the last matrices, as in llama.cpp's mixed
    types."""

    architecture: ClassVar[str] = "llama"
    norm_of_feed_forward: ClassVar[str] = "ffn_norm"

    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    head_size: int = 128
    n_ctx_train: int = 131_072
    rope_base: float = 500_000.0
    is_steady: bool = False
    weight_type: WeightType = WeightType.Q4_K
    better: WeightType = WeightType.Q6_K

    def matrices(self) -> Iterator[Matrix]:
        """Yields the tensors of the model."""
        yield Matrix(EMBEDDING, (self.n_vocab, self.n_embd), self.weight_type, 1.0)
        for number in range(self.n_layer):
            last = self.better if number % 2 == 0 else self.weight_type
            for matrix in self._layer(number, last):
                yield replace(matrix, name=f"blk.{number}.{matrix.name}")
        yield _ones("output_norm", self.n_embd)
        kind = self.weight_type if self.is_steady else self.better
        output = _normal("output", self.n_vocab, self.n_embd, kind=kind, gain=LOGIT_STD)
        yield replace(output, twin=EMBEDDING if self.is_steady else "")

    def add_facts(self, writer: GGUFWriter) -> None:
        """Writes the metadata of the shape."""
        is_plain = self.weight_type == WeightType.Q4_0
        writer.add_file_type(LlamaFileType.MOSTLY_Q4_0 if is_plain else LlamaFileType.MOSTLY_Q4_K_M)
        writer.add_vocab_size(self.n_vocab)
        writer.add_context_length(self.n_ctx_train)
        writer.add_embedding_length(self.n_embd)
        writer.add_block_count(self.n_layer)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_head_count(self.n_head)
        writer.add_head_count_kv(self.n_head_kv)
        writer.add_key_length(self.head_size)
        writer.add_value_length(self.head_size)
        writer.add_layer_norm_rms_eps(NORM_EPSILON)
        writer.add_rope_dimension_count(self.n_rotated)
        writer.add_rope_freq_base(self.rope_base)

    @property
    def n_rotated(self) -> int:
        """The channels of a head that positions rotate."""
        return self.head_size

    @property
    def feed_forward_gain(self) -> float:
        return 0.1 * FEED_FORWARD_GAIN if self.is_steady else FEED_FORWARD_GAIN

    def _layer(self, number: int, last: WeightType) -> Iterator[Matrix]:
        yield _ones("attn_norm", self.n_embd)
        yield from self._mixer(number, last)
        yield _ones(self.norm_of_feed_forward, self.n_embd)
        yield from self._feed_forward(last)

    def _mixer(self, number: int, last: WeightType) -> Iterator[Matrix]:
        """Yields the part of a layer that reads other tokens."""
        return self._attention(last, self.n_head * self.head_size)

    def _attention(self, last: WeightType, n_query: int) -> Iterator[Matrix]:
        n_embd, most = self.n_embd, self.weight_type
        n_kv, n_out = self.n_head_kv * self.head_size, self.n_head * self.head_size
        yield _normal("attn_q", n_query, n_embd, kind=most)
        yield _normal("attn_k", n_kv, n_embd, kind=most)
        yield _normal("attn_v", n_kv, n_embd, kind=last)
        yield _normal("attn_output", n_embd, n_out, kind=most, gain=MIXER_GAIN)

    def _head_norms(self) -> Iterator[Matrix]:
        yield _ones("attn_q_norm", self.head_size)
        yield _ones("attn_k_norm", self.head_size)

    def _feed_forward(self, last: WeightType) -> Iterator[Matrix]:
        n_embd, n_ff, most = self.n_embd, self.n_ff, self.weight_type
        yield _normal("ffn_gate", n_ff, n_embd, kind=most)
        yield _normal("ffn_up", n_ff, n_embd, kind=most)
        yield _normal("ffn_down", n_embd, n_ff, kind=last, gain=self.feed_forward_gain)


@dataclass(frozen=True, kw_only=True)
class Mixture(Shape):
    """A mixture of experts like Qwen3's. `n_ff` is the size of one of `n_expert` experts, of which
    each token uses `n_expert_used`."""

    architecture: ClassVar[str] = "qwen3moe"

    n_expert: int
    n_expert_used: int
    rope_base: float = 1_000_000.0

    def add_facts(self, writer: GGUFWriter) -> None:
        super().add_facts(writer)
        writer.add_expert_count(self.n_expert)
        writer.add_expert_used_count(self.n_expert_used)
        writer.add_expert_feed_forward_length(self.n_ff)

    def _mixer(self, number: int, last: WeightType) -> Iterator[Matrix]:
        yield from super()._mixer(number, last)
        yield from self._head_norms()

    def _feed_forward(self, last: WeightType) -> Iterator[Matrix]:
        n, n_embd, n_ff, most = self.n_expert, self.n_embd, self.n_ff, self.weight_type
        yield _normal("ffn_gate_inp", n, n_embd, kind=WeightType.F32)
        yield _normal("ffn_gate_exps", n, n_ff, n_embd, kind=most)
        yield _normal("ffn_up_exps", n, n_ff, n_embd, kind=most)
        yield _normal("ffn_down_exps", n, n_embd, n_ff, kind=last, gain=self.feed_forward_gain)


@dataclass(frozen=True, kw_only=True)
class Hybrid(Shape):
    """A hybrid like Qwen3.5: every `interval`-th layer has gated full attention, the others have
    linear attention (Yang et al., "Gated Delta Networks", 2024).

    Linear attention keeps a state of `state_size` x `state_size` numbers for each of `n_value_head`
    heads. `n_key_head` heads have the keys and queries. A convolution over `n_conv` tokens
    precedes them. `sections` are the pairs of channels that rotate with time, height and width.
    """

    architecture: ClassVar[str] = "qwen35"
    norm_of_feed_forward: ClassVar[str] = "post_attention_norm"

    n_key_head: int
    n_value_head: int
    state_size: int = 128
    n_conv: int = 4
    interval: int = 4
    head_size: int = 256
    sections: tuple[int, int, int, int] = (11, 11, 10, 0)
    n_ctx_train: int = 262_144
    rope_base: float = 10_000_000.0

    @property
    def n_rotated(self) -> int:
        return 2 * sum(self.sections)

    def add_facts(self, writer: GGUFWriter) -> None:
        super().add_facts(writer)
        writer.add_rope_dimension_sections(self.sections)
        writer.add_full_attention_interval(self.interval)
        writer.add_ssm_conv_kernel(self.n_conv)
        writer.add_ssm_inner_size(self.n_value_head * self.state_size)
        writer.add_ssm_state_size(self.state_size)
        writer.add_ssm_time_step_rank(self.n_value_head)
        writer.add_ssm_group_count(self.n_key_head)

    def _mixer(self, number: int, last: WeightType) -> Iterator[Matrix]:
        if (number + 1) % self.interval:
            return self._linear_attention(last)
        return self._gated_attention(last)

    def _gated_attention(self, last: WeightType) -> Iterator[Matrix]:
        """`attn_q` computes the gates, too: after each head's query."""
        yield from self._attention(last, 2 * self.n_head * self.head_size)
        yield from self._head_norms()

    def _linear_attention(self, last: WeightType) -> Iterator[Matrix]:
        n_embd, most = self.n_embd, self.weight_type
        n_key, n_value = self.n_key_head * self.state_size, self.n_value_head * self.state_size
        n_mixed = 2 * n_key + n_value
        yield _normal("attn_qkv", n_mixed, n_embd, kind=last)
        yield _normal("attn_gate", n_value, n_embd, kind=most)
        yield _normal("ssm_conv1d", n_mixed, self.n_conv, kind=WeightType.F32)
        yield _normal("ssm_beta", self.n_value_head, n_embd, kind=most)
        yield _normal("ssm_alpha", self.n_value_head, n_embd, kind=most)
        rates, biases = _decay(self.n_value_head)
        yield _vector("ssm_a", *rates)
        yield _vector("ssm_dt.bias", *biases)
        yield _ones("ssm_norm", self.state_size)
        yield _normal("ssm_out", n_embd, n_value, kind=most, gain=MIXER_GAIN)


def _decay(n_head: int) -> tuple[list[float], list[float]]:
    """Returns `ssm_a` and the bias `ssm_dt` of each head.

    A token multiplies a head's state by `exp(a * softplus(alpha + dt))`, where `alpha` is random
    with a standard deviation of 1. Then it replaces a part of the value that the state has for its
    key, which has length 1. So no state grows without limit if `a` is negative, and every token
    renews it, however long the text is. These values are those from which such layers are trained:
    -a from 1 to 16, softplus(dt) from 0.001 to 0.1 (Gu and Dao, "Mamba", 2023; Dao and Gu, "Mamba
    2", 2024). By the decay alone, the first head remembers 1,000 tokens, the last one a single one.
    """
    shares = [head / max(1, n_head - 1) for head in range(n_head)]
    steps = [0.001 * 100**share for share in shares]
    return [-1.0 - 15 * share for share in shares], [math.log(math.expm1(dt)) for dt in steps]


DENSE_8B = Shape(n_vocab=128_256, n_embd=4096, n_layer=32, n_head=32, n_head_kv=8, n_ff=14_336)
HYBRID_9B = Hybrid(
    n_vocab=248_320,
    n_embd=4096,
    n_layer=32,
    n_head=16,
    n_head_kv=4,
    n_ff=12_288,
    n_key_head=16,
    n_value_head=32,
)
_SHAPES: dict[str, Shape] = {
    "1.3b": Shape(
        n_vocab=32_768,
        n_embd=2048,
        n_layer=24,
        n_head=16,
        n_head_kv=16,
        n_ff=5632,
        weight_type=WeightType.Q4_0,
        better=WeightType.Q4_0,
    ),
    "8b": DENSE_8B,
    "30b-a3b": Mixture(
        n_vocab=151_936,
        n_embd=2048,
        n_layer=48,
        n_head=32,
        n_head_kv=4,
        n_ff=768,
        n_expert=128,
        n_expert_used=8,
    ),
    "9b-hybrid": HYBRID_9B,
    "trial": Shape(n_vocab=32_768, n_embd=512, n_layer=4, n_head=4, n_head_kv=2, n_ff=1536),
    "trial-moe": Mixture(
        n_vocab=32_768,
        n_embd=512,
        n_layer=4,
        n_head=4,
        n_head_kv=2,
        n_ff=256,
        n_expert=16,
        n_expert_used=4,
    ),
    "trial-hybrid": Hybrid(
        n_vocab=32_768,
        n_embd=512,
        n_layer=4,
        n_head=2,
        n_head_kv=1,
        n_ff=1536,
        n_key_head=2,
        n_value_head=4,
    ),
}
SHAPES = _SHAPES | {
    f"{name}{STEADY}": replace(shape, is_steady=True) for name, shape in _SHAPES.items()
}
"""The shapes by name: 1.3 B parameters in Q4_0, for processors; Llama 3 8B, Qwen3 30B A3B and
Qwen3.5 9B (without its layer for multi-token prediction) in Q4_K_M; and three small ones to try a
script. Each has a second form with the suffix `STEADY`."""
