"""Options of the draft model, a small one that proposes tokens."""

from functools import partial
from typing import Annotated, Literal, get_args

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.engine.options.tables.context import CacheType

_cache_type = partial(values.choice, choices=get_args(CacheType))
_draft = partial(Opt, group="Draft model")


class DraftModelOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The draft model, and where and how it is computed."""

    model_draft: Annotated[
        str,
        _draft(
            names="-md --model-draft --spec-draft-model",
            env="LLAMA_ARG_MODEL_DRAFT",
            also_env="LLAMA_ARG_SPEC_DRAFT_MODEL",
            metavar="FILE",
            help="GGUF file of a small model that proposes tokens, with the vocabulary of the "
            "model. With --hf-repo-draft, a file of that repository.",
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
            help="Size of the draft model's context, shared by all slots. It proposes nothing for "
            "longer texts.",
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
            help="Data type of the keys in its KV cache.",
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
            help="Data type of the values in its KV cache; a quantized one needs --flash-attn.",
            read=_cache_type,
        ),
    ] = "f16"
    device_draft: Annotated[
        tuple[str, ...],
        _draft(
            names="-devd --device-draft --spec-draft-device",
            metavar="NAME,...",
            help="Devices to offload it to, by the names that --list-devices prints, or none.",
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
            help="Most layers of it to keep in the memory of GPUs: a number, auto or all.",
            read=values.gpu_layers,
        ),
    ] = "auto"
    override_tensor_draft: Annotated[
        tuple[str, ...],
        _draft(
            names="-otd --override-tensor-draft --spec-draft-override-tensor",
            metavar="PATTERN=BUFFER,...",
            help="Put tensors of it whose names match a regular expression into a type of buffer.",
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
            help="Keep the experts of its mixture-of-experts layers in the memory of the CPU.",
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
            help="The same for its first N layers only.",
        ),
    ] = 0
    threads_draft: Annotated[
        int,
        _draft(
            names="-td --threads-draft --spec-draft-threads",
            metavar="N",
            min=-1,
            max=512,
            help="CPU threads for drafting.",
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
            help="CPU threads for its prompts and batches.",
            default="-1 (as --threads-draft, or else as --threads-batch)",
        ),
    ] = -1
    cpu_mask_draft: Annotated[
        tuple[int, ...],
        _draft(
            names="-Cd --cpu-mask-draft --spec-draft-cpu-mask",
            metavar="HEX",
            help="CPUs to draft on, as the bits of a number. Adds to --cpu-range-draft.",
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
            help="CPUs to draft on. Adds to --cpu-mask-draft.",
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
            help="The same as --cpu-strict, for drafting.",
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
            help="The same as --prio, for drafting, from 0 on.",
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
            help="The same as --poll, for drafting.",
            default="-1 (as --poll)",
        ),
    ] = -1
    cpu_mask_batch_draft: Annotated[
        tuple[int, ...],
        _draft(
            names="-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch",
            metavar="HEX",
            help="The same as --cpu-mask-draft, for prompts and batches.",
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
            help="The same as --cpu-strict-draft, for prompts and batches.",
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
            help="The same as --prio-draft, for prompts and batches.",
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
            help="The same as --poll-draft, for prompts and batches.",
            default="-1 (as --poll-draft)",
        ),
    ] = -1
    spec_replace: Annotated[
        tuple[tuple[str, str], ...],
        _draft(
            names="--spec-replace",
            metavar="TARGET DRAFT",
            help="Take a draft model with another vocabulary: texts are translated, and in them "
            "TARGET, a text of the model, becomes DRAFT for the draft model.",
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
            help="Without effect: drafting takes the likeliest token, which needs no sampler.",
        ),
    ] = True
