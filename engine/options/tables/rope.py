"""Options of how positions are computed."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options.declaration import INT32_MAX, Opt

_rope = partial(Opt, group="Context extension (RoPE and YaRN)")


class RopeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How a context becomes longer than the model was trained with."""

    rope_scaling: Annotated[
        Literal["", "none", "linear", "yarn"],
        _rope(
            names="--rope-scaling",
            env="LLAMA_ARG_ROPE_SCALING_TYPE",
            metavar="METHOD",
            help="How positions are scaled. With linear and yarn a slot may have a context longer "
            "than the trained one.",
            default="what the model says, else linear",
        ),
    ] = ""
    rope_scale: Annotated[
        float,
        _rope(
            names="--rope-scale",
            env="LLAMA_ARG_ROPE_SCALE",
            metavar="FACTOR",
            min=0,
            help="Makes the context this many times longer.",
            default="0 (what the model says)",
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
            help="Base frequency, for NTK-aware scaling.",
            default="0 (what the model says)",
        ),
    ] = 0.0
    rope_freq_scale: Annotated[
        float,
        _rope(
            names="--rope-freq-scale",
            env="LLAMA_ARG_ROPE_FREQ_SCALE",
            metavar="FACTOR",
            min=0,
            help="Frequency factor, the reciprocal of --rope-scale.",
            default="0 (what the model says)",
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
            help="Context size before the extension.",
            default="0 (what the model was trained with)",
        ),
    ] = 0
    yarn_ext_factor: Annotated[
        float,
        _rope(
            names="--yarn-ext-factor",
            env="LLAMA_ARG_YARN_EXT_FACTOR",
            metavar="FACTOR",
            help="Mix of extrapolation and interpolation (0: interpolation only).",
            default="-1 (what the model says)",
        ),
    ] = -1.0
    yarn_attn_factor: Annotated[
        float,
        _rope(
            names="--yarn-attn-factor",
            env="LLAMA_ARG_YARN_ATTN_FACTOR",
            metavar="FACTOR",
            help="Scale of the attention's magnitude.",
            default="-1 (what the model says)",
        ),
    ] = -1.0
    yarn_beta_slow: Annotated[
        float,
        _rope(
            names="--yarn-beta-slow",
            env="LLAMA_ARG_YARN_BETA_SLOW",
            metavar="BETA",
            help="Rotations below which a dimension is interpolated (alpha).",
            default="-1 (what the model says)",
        ),
    ] = -1.0
    yarn_beta_fast: Annotated[
        float,
        _rope(
            names="--yarn-beta-fast",
            env="LLAMA_ARG_YARN_BETA_FAST",
            metavar="BETA",
            help="Rotations above which a dimension is extrapolated (beta).",
            default="-1 (what the model says)",
        ),
    ] = -1.0

    def extends(self) -> bool:
        """True if a context longer than the trained one is asked for by name."""
        by_method = self.rope_scaling in ("linear", "yarn")
        return by_method or self.rope_scale > 1 or 0 < self.rope_freq_scale < 1
