"""Options of the machine that computes, and of how positions are computed."""

from functools import partial
from typing import Annotated, Literal

from engine.options import values
from engine.options.declaration import INT32_MAX, Opt, Switch
from engine.options.tables.model import ModelOptions

_compute = partial(Opt, group="Threads and devices")
_rope = partial(Opt, group="Context extension (RoPE and YaRN)")


class ComputeOptions(ModelOptions, kw_only=True, frozen=True):
    """Where and how the model is computed."""

    # ---- threads and devices ------------------------------------------------------------

    threads: Annotated[
        int,
        _compute(
            names="-t --threads",
            env="LLAMA_ARG_THREADS",
            metavar="N",
            min=-1,
            max=512,  # GGML_MAX_N_THREADS
            help="CPU threads for generating.",
            default="-1 (one for each physical core)",
        ),
    ] = -1
    threads_batch: Annotated[
        int,
        _compute(
            names="-tb --threads-batch",
            metavar="N",
            min=-1,
            max=512,
            help="CPU threads for prompts and batches.",
            default="-1 (as --threads)",
        ),
    ] = -1
    numa: Annotated[
        Literal["", "distribute", "isolate", "numactl"],
        _compute(
            names="--numa",
            env="LLAMA_ARG_NUMA",
            metavar="MODE",
            help="On machines with several memory nodes: spread the work over all nodes, stay "
            "on the node of the start, or follow numactl.",
            default="off",
        ),
    ] = ""
    device: Annotated[
        tuple[str, ...],
        _compute(
            names="-dev --device",
            env="LLAMA_ARG_DEVICE",
            metavar="NAME,...",
            help="Devices to offload to, by the names that --list-devices prints, or none.",
            default="all",
            read=values.devices,
            show=values.show_comma_separated,
        ),
    ] = ()
    n_gpu_layers: Annotated[
        int | Literal["auto", "all"],
        _compute(
            names="-ngl --gpu-layers --n-gpu-layers",
            env="LLAMA_ARG_N_GPU_LAYERS",
            metavar="N",
            help="Most layers to keep in the memory of GPUs: a number, auto or all.",
            read=values.gpu_layers,
        ),
    ] = "auto"
    split_mode: Annotated[
        Literal["none", "layer", "row"],
        _compute(
            names="-sm --split-mode",
            env="LLAMA_ARG_SPLIT_MODE",
            metavar="MODE",
            help="How several GPUs share the model: one GPU only, by layers, or by rows.",
        ),
    ] = "layer"
    tensor_split: Annotated[
        tuple[float, ...],
        _compute(
            names="-ts --tensor-split",
            env="LLAMA_ARG_TENSOR_SPLIT",
            metavar="N,...",
            help="How much of the model each GPU takes, as proportions such as 3,1.",
            default="by free memory",
            read=values.tensor_split,
            show=values.show_tensor_split,
        ),
    ] = ()
    main_gpu: Annotated[
        int,
        _compute(
            names="-mg --main-gpu",
            env="LLAMA_ARG_MAIN_GPU",
            metavar="INDEX",
            min=0,
            max=INT32_MAX,
            help="The GPU to use with --split-mode none; with row, that of small tensors.",
        ),
    ] = 0
    flash_attn: Annotated[
        Switch,
        _compute(
            names="-fa --flash-attn",
            env="LLAMA_ARG_FLASH_ATTN",
            metavar="[on|off|auto]",
            help="Use the Flash Attention kernels.",
            bare="on",
            read=values.switch,
        ),
    ] = "auto"
    kv_offload: Annotated[
        bool,
        _compute(
            names="-kvo --kv-offload",
            negative="-nkvo --no-kv-offload",
            env="LLAMA_ARG_KV_OFFLOAD",
            help="Keep the KV cache on the GPUs.",
        ),
    ] = True
    op_offload: Annotated[
        bool,
        _compute(
            names="--op-offload",
            negative="--no-op-offload",
            help="Let GPUs compute with tensors that are in host memory.",
        ),
    ] = True

    # ---- context extension --------------------------------------------------------------

    rope_scaling: Annotated[
        Literal["", "none", "linear", "yarn"],
        _rope(
            names="--rope-scaling",
            env="LLAMA_ARG_ROPE_SCALING_TYPE",
            metavar="METHOD",
            help="How positions are scaled.",
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
