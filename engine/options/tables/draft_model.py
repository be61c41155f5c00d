"""Options of the draft model, a small model that proposes tokens."""

from functools import partial
from typing import Annotated, Literal, get_args

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.engine.options.tables.context import CacheType

_cache_type = partial(values.choice, choices=get_args(CacheType))
_draft = partial(Opt, group="Draft model")


class DraftModelOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The draft model, and on which devices and how it is computed."""

    model_draft: Annotated[
        str,
        _draft(
            names="-md --model-draft --spec-draft-model",
            env="LLAMA_ARG_MODEL_DRAFT",
            also_env="LLAMA_ARG_SPEC_DRAFT_MODEL",
            metavar="FILE",
            help="GGUF file of the draft model, which must have the vocabulary of the main model "
            "unless --spec-replace is given. With --hf-repo-draft, a file of that "
            "repository.",
            default="none",
            supersedes=("hf_repo_draft",),
            file=files.check_model,
        ),
    ] = ""
    ctx_size_draft: Annotated[
        int,
        _draft(
            names="-cd --ctx-size-draft",
            env="LLAMA_ARG_CTX_SIZE_DRAFT",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="Context size of the draft model in tokens, shared by all slots. It proposes "
            "nothing for longer texts.",
            default="0 (as --ctx-size)",
        ),
    ] = 0
    cache_type_k_draft: Annotated[
        CacheType,
        _draft(
            names="-ctkd --cache-type-k-draft --spec-draft-type-k",
            env="LLAMA_ARG_CACHE_TYPE_K_DRAFT",
            also_env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
            metavar="TYPE",
            help="KV cache data type of the draft model's keys.",
            read=_cache_type,
        ),
    ] = "f16"
    cache_type_v_draft: Annotated[
        CacheType,
        _draft(
            names="-ctvd --cache-type-v-draft --spec-draft-type-v",
            env="LLAMA_ARG_CACHE_TYPE_V_DRAFT",
            also_env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
            metavar="TYPE",
            help="KV cache data type of the draft model's values. Quantized types need Flash "
            "Attention.",
            read=_cache_type,
        ),
    ] = "f16"
    device_draft: Annotated[
        tuple[str, ...],
        _draft(
            names="-devd --device-draft --spec-draft-device",
            metavar="NAME,...",
            help="Devices to offload the draft model to, by the names that --list-devices "
            "prints; none disables offloading.",
            default="as --device",
            read=values.devices,
            show=values.show_comma_separated,
        ),
    ] = ()
    n_gpu_layers_draft: Annotated[
        int | Literal["auto", "all"],
        _draft(
            names="-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
            env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
            metavar="N",
            help="Maximum number of layers of the draft model to store in GPU memory: a number, "
            "auto or all.",
            read=values.gpu_layers,
        ),
    ] = "auto"
    override_tensor_draft: Annotated[
        tuple[str, ...],
        _draft(
            names="-otd --override-tensor-draft --spec-draft-override-tensor",
            metavar="PATTERN=BUFFER,...",
            help="Override the buffer type of the draft model's tensors whose names match a "
            "regular expression.",
            default="none",
            repeats=True,
            read=values.override_tensor,
            show=values.show_comma_separated,
        ),
    ] = ()
    cpu_moe_draft: Annotated[
        bool,
        _draft(
            names="-cmoed --cpu-moe-draft --spec-draft-cpu-moe",
            env="LLAMA_ARG_CPU_MOE_DRAFT",
            also_env="LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
            help="Keep the experts of all mixture-of-experts layers of the draft model in CPU "
            "memory.",
        ),
    ] = False
    n_cpu_moe_draft: Annotated[
        int,
        _draft(
            names="-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe",
            env="LLAMA_ARG_N_CPU_MOE_DRAFT",
            also_env="LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
            metavar="N",
            min=0,
            max=1024,
            help="Keep the experts of the draft model's first N layers in CPU memory.",
        ),
    ] = 0
    threads_draft: Annotated[
        int,
        _draft(
            names="-td --threads-draft --spec-draft-threads",
            metavar="N",
            min=-1,
            max=512,
            help="CPU threads for the draft model's generation.",
            default="-1 (as --threads)",
        ),
    ] = -1
    threads_batch_draft: Annotated[
        int,
        _draft(
            names="-tbd --threads-batch-draft --spec-draft-threads-batch",
            metavar="N",
            min=-1,
            max=512,
            help="CPU threads for the draft model's prompt processing and batches.",
            default="-1 (as --threads-draft, or else as --threads-batch)",
        ),
    ] = -1
    cpu_mask_draft: Annotated[
        tuple[int, ...],
        _draft(
            names="-Cd --cpu-mask-draft --spec-draft-cpu-mask",
            metavar="HEX",
            help="Hexadecimal mask of the CPUs for the draft model, in addition to "
            "--cpu-range-draft.",
            default="as --cpu-mask and --cpu-range",
            read=values.cpu_mask,
            show=values.show_cpu_mask,
        ),
    ] = ()
    cpu_range_draft: Annotated[
        tuple[int, ...],
        _draft(
            names="-Crd --cpu-range-draft --spec-draft-cpu-range",
            metavar="FIRST-LAST",
            help="Range of CPUs for the draft model, in addition to --cpu-mask-draft.",
            default="as --cpu-mask and --cpu-range",
            read=values.cpu_range,
            show=values.show_cpu_range,
        ),
    ] = ()
    cpu_strict_draft: Annotated[
        int,
        _draft(
            names="--cpu-strict-draft --spec-draft-cpu-strict",
            metavar="0|1",
            min=-1,
            max=1,
            help="--cpu-strict for the draft model.",
            default="-1 (as --cpu-strict)",
        ),
    ] = -1
    prio_draft: Annotated[
        int,
        _draft(
            names="--prio-draft --spec-draft-prio",
            metavar="N",
            min=-1,
            max=3,
            help="--prio for the draft model, from 0 (normal) to 3.",
            default="-1 (as --prio)",
        ),
    ] = -1
    poll_draft: Annotated[
        int,
        _draft(
            names="--poll-draft --spec-draft-poll",
            metavar="PERCENT",
            min=-1,
            max=100,
            help="--poll for the draft model.",
            default="-1 (as --poll)",
        ),
    ] = -1
    cpu_mask_batch_draft: Annotated[
        tuple[int, ...],
        _draft(
            names="-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch",
            metavar="HEX",
            help="--cpu-mask-draft for prompt processing and batches.",
            default="as --cpu-mask-draft",
            read=values.cpu_mask,
            show=values.show_cpu_mask,
        ),
    ] = ()
    cpu_strict_batch_draft: Annotated[
        int,
        _draft(
            names="--cpu-strict-batch-draft --spec-draft-cpu-strict-batch",
            metavar="0|1",
            min=-1,
            max=1,
            help="--cpu-strict-draft for prompt processing and batches.",
            default="-1 (as --cpu-strict-draft)",
        ),
    ] = -1
    prio_batch_draft: Annotated[
        int,
        _draft(
            names="--prio-batch-draft --spec-draft-prio-batch",
            metavar="N",
            min=-1,
            max=3,
            help="--prio-draft for prompt processing and batches.",
            default="-1 (as --prio-draft)",
        ),
    ] = -1
    poll_batch_draft: Annotated[
        int,
        _draft(
            names="--poll-batch-draft --spec-draft-poll-batch",
            metavar="PERCENT",
            min=-1,
            max=100,
            help="--poll-draft for prompt processing and batches.",
            default="-1 (as --poll-draft)",
        ),
    ] = -1
    spec_replace: Annotated[
        tuple[tuple[str, str], ...],
        _draft(
            names="--spec-replace",
            metavar="TARGET DRAFT",
            help="Allow a draft model with another vocabulary. Texts are converted for it, and "
            "TARGET, a text of the main model, is replaced by DRAFT.",
            default="none",
            n_values=2,
            repeats=True,
            one_each=True,
            read=text_values.replacement,
            show=text_values.show_replacements,
        ),
    ] = ()
    spec_draft_backend_sampling: Annotated[
        bool,
        _draft(
            names="--spec-draft-backend-sampling",
            negative="--no-spec-draft-backend-sampling",
            env="LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
            help="Without effect: the draft model always proposes the likeliest token, without a "
            "sampler.",
        ),
    ] = True
