"""Options of the hardware: CPU threads, GPUs, memory."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options import values
from specllama.engine.options.declaration import INT32_MAX, Opt, Switch

THREAD_PLACEMENT = (
    "cpu_mask",
    "cpu_range",
    "cpu_strict",
    "prio",
    "poll",
    "cpu_mask_batch",
    "cpu_range_batch",
    "cpu_strict_batch",
    "prio_batch",
    "poll_batch",
)
"""Options of CPU threads. Any of them makes the engine create its own thread pools."""

DEFAULT_FIT_TARGET = 1024  # MiB

_compute = partial(Opt, group="Threads and devices")


class ComputeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """On which devices, and how, the model is computed."""

    threads: Annotated[
        int,
        _compute(
            names="-t --threads",
            env="LLAMA_ARG_THREADS",
            metavar="N",
            min=-1,
            max=512,  # GGML_MAX_N_THREADS
            help="CPU threads for generation.",
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
            help="CPU threads for prompt processing and batches.",
            default="-1 (as --threads)",
        ),
    ] = -1
    cpu_mask: Annotated[
        tuple[int, ...],
        _compute(
            names="-C --cpu-mask",
            metavar="HEX",
            help="Hexadecimal mask of the CPUs that threads may run on, in addition to "
            "--cpu-range.",
            default="any",
            read=values.cpu_mask,
            show=values.show_cpu_mask,
        ),
    ] = ()
    cpu_range: Annotated[
        tuple[int, ...],
        _compute(
            names="-Cr --cpu-range",
            metavar="FIRST-LAST",
            help="Range of CPUs that threads may run on, in addition to --cpu-mask.",
            default="any",
            read=values.cpu_range,
            show=values.show_cpu_range,
        ),
    ] = ()
    cpu_strict: Annotated[
        int,
        _compute(
            names="--cpu-strict",
            metavar="0|1",
            min=0,
            max=1,
            help="1: pin each thread to one CPU.",
        ),
    ] = 0
    prio: Annotated[
        int,
        _compute(
            names="--prio",
            metavar="N",
            min=-1,
            max=3,
            help="Priority of CPU threads: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.",
        ),
    ] = 0
    poll: Annotated[
        int,
        _compute(
            names="--poll",
            metavar="PERCENT",
            min=0,
            max=100,
            help="Share of busy waiting while threads are idle, from 0 (sleep) to 100 (poll). "
            "Without effect in builds of llama.cpp with OpenMP.",
        ),
    ] = 50
    cpu_mask_batch: Annotated[
        tuple[int, ...],
        _compute(
            names="-Cb --cpu-mask-batch",
            metavar="HEX",
            help="--cpu-mask for prompt processing and batches.",
            default="as --cpu-mask",
            read=values.cpu_mask,
            show=values.show_cpu_mask,
        ),
    ] = ()
    cpu_range_batch: Annotated[
        tuple[int, ...],
        _compute(
            names="-Crb --cpu-range-batch",
            metavar="FIRST-LAST",
            help="--cpu-range for prompt processing and batches.",
            default="as --cpu-range",
            read=values.cpu_range,
            show=values.show_cpu_range,
        ),
    ] = ()
    cpu_strict_batch: Annotated[
        int,
        _compute(
            names="--cpu-strict-batch",
            metavar="0|1",
            min=-1,
            max=1,
            help="--cpu-strict for prompt processing and batches.",
            default="-1 (as --cpu-strict)",
        ),
    ] = -1
    prio_batch: Annotated[
        int,
        _compute(
            names="--prio-batch",
            metavar="N",
            min=-1,
            max=3,
            help="--prio for prompt processing and batches, from 0 (normal) to 3.",
            default="-1 (as --prio)",
        ),
    ] = -1
    poll_batch: Annotated[
        int,
        _compute(
            names="--poll-batch",
            metavar="PERCENT",
            min=-1,
            max=100,
            help="--poll for prompt processing and batches.",
            default="-1 (as --poll)",
        ),
    ] = -1
    perf: Annotated[
        bool,
        _compute(
            names="--perf",
            negative="--no-perf",
            env="LLAMA_ARG_PERF",
            help="Let llama.cpp measure its times and log them when the engine process ends.",
        ),
    ] = False
    numa: Annotated[
        Literal["", "distribute", "isolate", "numactl"],
        _compute(
            names="--numa",
            env="LLAMA_ARG_NUMA",
            metavar="MODE",
            help="NUMA strategy: distribute threads over all nodes, isolate them on the node "
            "where the server starts, or use the CPU map of numactl.",
            default="off",
        ),
    ] = ""
    device: Annotated[
        tuple[str, ...],
        _compute(
            names="-dev --device",
            env="LLAMA_ARG_DEVICE",
            metavar="NAME,...",
            help="Devices to offload to, by the names that --list-devices prints; none disables "
            "offloading.",
            default="all",
            read=values.devices,
            show=values.show_comma_separated,
        ),
    ] = ()
    rpc: Annotated[
        tuple[str, ...],
        _compute(
            names="--rpc",
            env="LLAMA_ARG_RPC",
            metavar="HOST:PORT,...",
            help="Addresses of llama.cpp RPC servers (rpc-server), whose devices are used like "
            "local ones. Needs a build of llama.cpp with the RPC backend.",
            default="none",
            repeats=True,
            read=values.rpc_servers,
            show=values.show_comma_separated,
        ),
    ] = ()
    n_gpu_layers: Annotated[
        int | Literal["auto", "all"],
        _compute(
            names="-ngl --gpu-layers --n-gpu-layer --n-gpu-layers",
            env="LLAMA_ARG_N_GPU_LAYERS",
            metavar="N",
            help="Maximum number of layers to store in GPU memory: a number, auto (see --fit) or "
            "all.",
            read=values.gpu_layers,
        ),
    ] = "auto"
    split_mode: Annotated[
        Literal["none", "layer", "row"],
        _compute(
            names="-sm --split-mode",
            env="LLAMA_ARG_SPLIT_MODE",
            metavar="MODE",
            help="How to split the model across several GPUs: none (use one GPU), by layer, or "
            "by row.",
        ),
    ] = "layer"
    tensor_split: Annotated[
        tuple[float, ...],
        _compute(
            names="-ts --tensor-split",
            env="LLAMA_ARG_TENSOR_SPLIT",
            metavar="N,...",
            help="Proportions of the model for each GPU, such as 3,1.",
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
            help="Index of the GPU for the whole model (--split-mode none), or for small tensors "
            "(--split-mode row).",
        ),
    ] = 0
    override_tensor: Annotated[
        tuple[str, ...],
        _compute(
            names="-ot --override-tensor",
            env="LLAMA_ARG_OVERRIDE_TENSOR",
            metavar="PATTERN=BUFFER,...",
            help="Override the buffer type of tensors whose names match a regular expression.",
            default="none",
            repeats=True,
            read=values.override_tensor,
            show=values.show_comma_separated,
        ),
    ] = ()
    cpu_moe: Annotated[
        bool,
        _compute(
            names="-cmoe --cpu-moe",
            env="LLAMA_ARG_CPU_MOE",
            help="Keep the experts of all mixture-of-experts layers in CPU memory.",
        ),
    ] = False
    n_cpu_moe: Annotated[
        int,
        _compute(
            names="-ncmoe --n-cpu-moe",
            env="LLAMA_ARG_N_CPU_MOE",
            metavar="N",
            min=0,
            max=1024,
            help="Keep the experts of the first N layers in CPU memory.",
        ),
    ] = 0
    n_cpu_ffn: Annotated[
        int,
        _compute(
            names="-ncffn --n-cpu-ffn",
            env="LLAMA_ARG_N_CPU_FFN",
            metavar="N",
            min=0,
            max=1024,
            help="Keep the dense feed-forward weights of the first N layers in CPU memory.",
        ),
    ] = 0
    fit: Annotated[
        Literal["on", "off"],
        _compute(
            names="-fit --fit",
            env="LLAMA_ARG_FIT",
            metavar="[on|off]",
            help="Choose --ctx-size and --gpu-layers, where not given, so that the model fits "
            "into the free memory of the devices (of the host if no device is used), and "
            "reject a KV cache that exceeds the host's memory.",
            bare="on",
            read=values.fit,
        ),
    ] = "on"
    fit_target: Annotated[
        tuple[int, ...],
        _compute(
            names="-fitt --fit-target",
            env="LLAMA_ARG_FIT_TARGET",
            metavar="MIB,...",
            help="Free memory that --fit leaves on each device, in MiB; a single value applies "
            "to all devices.",
            read=values.fit_target,
            show=values.show_fit_target,
        ),
    ] = (DEFAULT_FIT_TARGET,)
    fit_ctx: Annotated[
        int,
        _compute(
            names="-fitc --fit-ctx",
            env="LLAMA_ARG_FIT_CTX",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="Minimum context size that --fit chooses (for each slot, with --no-kv-unified).",
        ),
    ] = 4096
    flash_attn: Annotated[
        Switch,
        _compute(
            names="-fa --flash-attn",
            env="LLAMA_ARG_FLASH_ATTN",
            metavar="[on|off|auto]",
            help="Use Flash Attention.",
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
            help="Keep the KV cache in GPU memory.",
        ),
    ] = True
    op_offload: Annotated[
        bool,
        _compute(
            names="--op-offload",
            negative="--no-op-offload",
            help="Run operations on GPUs even if their tensors are in host memory.",
        ),
    ] = True

    def fit_margin(self, index: int) -> int:
        """Returns the bytes that --fit leaves free on device `index`."""
        given = self.fit_target
        if len(given) > 1:
            given = (*given, *[DEFAULT_FIT_TARGET] * (index + 1 - len(given)))
        return given[min(index, len(given) - 1)] << 20

    def cpus(self) -> list[int]:
        """Returns the CPUs of --cpu-mask and --cpu-range; empty if any CPU may be used."""
        return sorted({*self.cpu_mask, *self.cpu_range})

    def cpus_batch(self) -> list[int]:
        """Returns the CPUs for batches; empty if any CPU may be used."""
        return sorted({*self.cpu_mask_batch, *self.cpu_range_batch}) or self.cpus()

    def places_threads(self) -> bool:
        """Returns whether any option of `THREAD_PLACEMENT` differs from its default."""
        default = ComputeOptions()
        return any(getattr(self, name) != getattr(default, name) for name in THREAD_PLACEMENT)
