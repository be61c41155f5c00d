"""Options of rotary position embeddings (RoPE), which extend the context."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options.declaration import INT32_MAX, Opt

_rope = partial(Opt, group="Context extension (RoPE and YaRN)")


class RopeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How to extend the context beyond the size that the model was trained with."""

    rope_scaling: Annotated[
        Literal["", "none", "linear", "yarn"],
        _rope(
            names="--rope-scaling",
            env="LLAMA_ARG_ROPE_SCALING_TYPE",
            metavar="METHOD",
            help="RoPE scaling method. With linear and yarn, the context of a slot may exceed "
            "the trained size.",
            default="the model's own, else linear",
        ),
    ] = ""
    rope_scale: Annotated[
        float,
        _rope(
            names="--rope-scale",
            env="LLAMA_ARG_ROPE_SCALE",
            metavar="FACTOR",
            min=0,
            help="Factor by which the context is extended.",
            default="0 (the model's own)",
            replaces=("rope_freq_scale",),
        ),
    ] = 0.0
    rope_freq_base: Annotated[
        float,
        _rope(
            names="--rope-freq-base",
            env="LLAMA_ARG_ROPE_FREQ_BASE",
            metavar="BASE",
            min=0,
            help="RoPE base frequency, for NTK-aware scaling.",
            default="0 (the model's own)",
        ),
    ] = 0.0
    rope_freq_scale: Annotated[
        float,
        _rope(
            names="--rope-freq-scale",
            env="LLAMA_ARG_ROPE_FREQ_SCALE",
            metavar="FACTOR",
            min=0,
            help="RoPE frequency scaling factor; the reciprocal of --rope-scale.",
            default="0 (the model's own)",
            replaces=("rope_scale",),
        ),
    ] = 0.0
    yarn_orig_ctx: Annotated[
        int,
        _rope(
            names="--yarn-orig-ctx",
            env="LLAMA_ARG_YARN_ORIG_CTX",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="YaRN: original context size of the model.",
            default="0 (the trained size)",
        ),
    ] = 0
    yarn_ext_factor: Annotated[
        float,
        _rope(
            names="--yarn-ext-factor",
            env="LLAMA_ARG_YARN_EXT_FACTOR",
            metavar="FACTOR",
            help="YaRN: extrapolation mix factor (0: interpolation only).",
            default="-1 (the model's own)",
        ),
    ] = -1.0
    yarn_attn_factor: Annotated[
        float,
        _rope(
            names="--yarn-attn-factor",
            env="LLAMA_ARG_YARN_ATTN_FACTOR",
            metavar="FACTOR",
            help="YaRN: scale of the attention magnitude.",
            default="-1 (the model's own)",
        ),
    ] = -1.0
    yarn_beta_slow: Annotated[
        float,
        _rope(
            names="--yarn-beta-slow",
            env="LLAMA_ARG_YARN_BETA_SLOW",
            metavar="BETA",
            help="YaRN: high correction dimension, alpha. Dimensions with fewer rotations are "
            "interpolated.",
            default="-1 (the model's own)",
        ),
    ] = -1.0
    yarn_beta_fast: Annotated[
        float,
        _rope(
            names="--yarn-beta-fast",
            env="LLAMA_ARG_YARN_BETA_FAST",
            metavar="BETA",
            help="YaRN: low correction dimension, beta. Dimensions with more rotations are "
            "extrapolated.",
            default="-1 (the model's own)",
        ),
    ] = -1.0

    def extends(self) -> bool:
        """Returns whether the options ask for a context longer than the trained one."""
        by_method = self.rope_scaling in ("linear", "yarn")
        return by_method or self.rope_scale > 1 or 0 < self.rope_freq_scale < 1
