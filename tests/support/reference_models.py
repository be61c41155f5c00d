"""The forward passes of two architectures in numpy, written from their papers.

They share only the file with llama.cpp: weights are read from the GGUF, and arithmetic is in
float64. Each function returns one vector for each token.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

Array = npt.NDArray[np.float64]


class Weights:
    """Tensors and metadata of a GGUF file without quantized tensors."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._fields = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = str(self._fields["general.architecture"])
        # The shape in a GGUF file has the fastest dimension first.
        self._tensors: dict[str, Array] = {
            tensor.name: np.array(tensor.data, np.float64).reshape(tuple(tensor.shape)[::-1])
            for tensor in reader.tensors
        }

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name]

    def value(self, name: str) -> Any:
        return self._fields[f"{self.arch}.{name}"]

    def linear(self, name: str, x: Array) -> Array:
        """Returns x W^T + b."""
        y = x @ self[f"{name}.weight"].T
        return y + self._tensors.get(f"{name}.bias", np.zeros(1))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = e / e.sum(axis=-1, keepdims=True)
    return result


def attention(q: Array, k: Array, v: Array, n_head: int, n_kv: int, causal: bool) -> Array:
    """Scaled dot-product attention; each group of n_head / n_kv heads shares keys and values."""
    n = len(q)
    heads = q.reshape(n, n_head, -1)
    keys = np.repeat(k.reshape(n, n_kv, -1), n_head // n_kv, axis=1)
    values = np.repeat(v.reshape(n, n_kv, -1), n_head // n_kv, axis=1)
    scores = np.einsum("ihd,jhd->hij", heads, keys) / np.sqrt(heads.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    result: Array = np.einsum("hij,jhd->ihd", softmax(scores), values).reshape(n, -1)
    return result


# ---- llama (Touvron et al., 2023) ----------------------------------------------------------


def llama(weights: Weights, tokens: list[int]) -> Array:
    n_head, n_kv = weights.value("attention.head_count"), weights.value("attention.head_count_kv")
    base, epsilon = (
        weights.value("rope.freq_base"),
        weights.value("attention.layer_norm_rms_epsilon"),
    )

    def norm(name: str, x: Array) -> Array:
        scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
        result: Array = x / scale * weights[f"{name}.weight"]
        return result

    def rotated(x: Array, n: int) -> Array:
        """RoPE (Su et al., 2021) on neighbouring pairs."""
        pairs = x.reshape(len(x), n, -1, 2)
        d = 2 * pairs.shape[2]
        angle = np.arange(len(x))[:, None] * base ** (-np.arange(0, d, 2) / d)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = pairs[..., 0], pairs[..., 1]
        return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)

    x = weights["token_embd.weight"][tokens]
    for layer in range(weights.value("block_count")):
        block = f"blk.{layer}."
        h = norm(block + "attn_norm", x)
        q = rotated(weights.linear(block + "attn_q", h), n_head)
        k = rotated(weights.linear(block + "attn_k", h), n_kv)
        v = weights.linear(block + "attn_v", h)
        x = x + weights.linear(block + "attn_output", attention(q, k, v, n_head, n_kv, True))
        h = norm(block + "ffn_norm", x)
        gate = weights.linear(block + "ffn_gate", h)
        inner = gate / (1 + np.exp(-gate)) * weights.linear(block + "ffn_up", h)
        x = x + weights.linear(block + "ffn_down", inner)
    return norm("output_norm", x)


# ---- BERT (Devlin et al., 2018) ------------------------------------------------------------


def bert(weights: Weights, tokens: list[int]) -> Array:
    n_head = weights.value("attention.head_count")
    epsilon = weights.value("attention.layer_norm_epsilon")

    def norm(name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
        result: Array = centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        return result

    def gelu(x: Array) -> Array:
        result: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return result

    x = weights["token_embd.weight"][tokens] + weights["position_embd.weight"][: len(tokens)]
    x = norm("token_embd_norm", x + weights["token_types.weight"][0])
    for layer in range(weights.value("block_count")):
        block = f"blk.{layer}."
        q, k, v = (weights.linear(f"{block}attn_{each}", x) for each in "qkv")
        mixed = weights.linear(block + "attn_output", attention(q, k, v, n_head, n_head, False))
        x = norm(block + "attn_output_norm", x + mixed)
        inner = gelu(weights.linear(block + "ffn_up", x))
        x = norm(block + "layer_output_norm", x + weights.linear(block + "ffn_down", inner))
    return x


# ---- results from the tokens' vectors -------------------------------------------------------


def pooled(pooling: str, vectors: Array) -> Array:
    """Returns the pooled vectors: one row, or one for each token."""
    match pooling:
        case "none":
            return vectors
        case "mean":
            mean: Array = vectors.mean(axis=0, keepdims=True)
            return mean
        case "cls":
            return vectors[:1]
        case _:
            return vectors[-1:]


def score(weights: Weights, vectors: Array) -> float:
    """Returns the score of a cross-encoder with a classification head on the first token."""
    hidden = np.tanh(weights.linear("cls", vectors[:1]))
    return float(weights.linear("cls.output", hidden)[0, 0])


def forward(weights: Weights, tokens: list[int]) -> Array:
    return {"llama": llama, "bert": bert}[weights.arch](weights, tokens)
