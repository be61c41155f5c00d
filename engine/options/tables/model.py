"""Options of the model: what to load."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options import files, values
from specllama.engine.options.declaration import Opt, Switch

LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]

_model = partial(Opt, group="Model")


class ModelOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to load, and how."""

    model: Annotated[
        str,
        _model(
            names="-m --model",
            env="LLAMA_ARG_MODEL",
            metavar="FILE",
            help="GGUF file to load.",
            default="the small model that ships with the package",
            excludes=("hf_repo", "model_url", "docker_repo"),
            supersedes=("hf_file",),
            file=files.check_named_model,
        ),
    ] = ""
    alias: Annotated[
        str,
        _model(
            names="-a --alias",
            env="LLAMA_ARG_ALIAS",
            metavar="NAME,...",
            help="Names under which the API shows the model.",
            default="its path",
        ),
    ] = ""
    mmap: Annotated[
        bool,
        _model(
            names="--mmap",
            negative="--no-mmap",
            env="LLAMA_ARG_MMAP",
            help="Map the model file into memory. Without, loading is slower, but pages of the "
            "model are not dropped and read again.",
            replaces=("load_mode",),
        ),
    ] = True
    mlock: Annotated[
        bool,
        _model(
            names="--mlock",
            env="LLAMA_ARG_MLOCK",
            help="Keep the model in RAM: the system may neither swap nor compress it.",
            replaces=("load_mode",),
        ),
    ] = False
    direct_io: Annotated[
        bool,
        _model(
            names="-dio --direct-io",
            negative="-ndio --no-direct-io",
            env="LLAMA_ARG_DIO",
            help="Read the model file past the page cache, rather than mapping it (--mmap).",
            replaces=("load_mode",),
        ),
    ] = False
    load_mode: Annotated[
        LoadMode,
        _model(
            names="-lm --load-mode",
            env="LLAMA_ARG_LOAD_MODE",
            metavar="MODE",
            help="The same as --mmap, --mlock and --direct-io in one word; auto is as these say.",
            replaces=("mmap", "mlock", "direct_io"),
        ),
    ] = "auto"
    lazy_mode: Annotated[
        Switch,
        _model(
            names="-lzm --lazy-mode",
            env="LLAMA_ARG_LAZY_MODE",
            metavar="[on|off|auto]",
            help="Read rows of some large tensors, such as embeddings of each layer, when they are "
            "needed; auto does so with tensors of more than 4 GiB. Needs --mmap.",
            read=values.switch,
        ),
    ] = "auto"
    repack: Annotated[
        bool,
        _model(
            names="--repack",
            negative="-nr --no-repack",
            env="LLAMA_ARG_REPACK",
            help="Rearrange weights in memory for the CPU where that makes it faster.",
        ),
    ] = True
    no_host: Annotated[
        bool,
        _model(
            names="--no-host",
            env="LLAMA_ARG_NO_HOST",
            help="Don't keep weights in the host buffers of GPUs, so that they can be repacked.",
        ),
    ] = False
    check_tensors: Annotated[
        bool,
        _model(names="--check-tensors", help="Look for invalid numbers in the model's tensors."),
    ] = False
    override_kv: Annotated[
        tuple[str, ...],
        _model(
            names="--override-kv",
            metavar="KEY=TYPE:VALUE,...",
            help="Replace metadata of the model file, for example "
            "tokenizer.ggml.add_bos_token=bool:false; TYPE is int, float, bool or str.",
            default="none",
            repeats=True,
            read=values.override_kv,
            show=values.show_comma_separated,
        ),
    ] = ()
    control_vector: Annotated[
        tuple[str, ...],
        _model(
            names="--control-vector",
            metavar="FILE,...",
            help="Add control vectors: directions that steer what layers write.",
            default="none",
            repeats=True,
            read=values.comma_separated,
            show=values.show_comma_separated,
            file=files.check_ggufs,
        ),
    ] = ()
    control_vector_scaled: Annotated[
        tuple[tuple[str, float], ...],
        _model(
            names="--control-vector-scaled",
            metavar="FILE:SCALE,...",
            help="The same, each multiplied by a number.",
            default="none",
            repeats=True,
            read=values.scaled_files,
            show=values.show_scaled_files,
            file=files.check_scaled_ggufs,
        ),
    ] = ()
    control_vector_layer_range: Annotated[
        tuple[int, ...],
        _model(
            names="--control-vector-layer-range",
            metavar="FIRST LAST",
            help="The layers that control vectors are applied to, from 1.",
            default="all",
            n_values=2,
            read=values.layer_range,
            show=values.show_layer_range,
        ),
    ] = ()
    lora: Annotated[
        tuple[tuple[str, float], ...],
        _model(
            names="--lora",
            metavar="FILE,...",
            help="LoRA adapters to load, applied with scale 1. Their ids are their places among "
            "all adapters on the command line, from 0 on.",
            default="none",
            repeats=True,
            read=values.lora,
            show=values.show_lora,
            file=files.check_scaled_ggufs,
        ),
    ] = ()
    lora_scaled: Annotated[
        tuple[tuple[str, float], ...],
        _model(
            names="--lora-scaled",
            metavar="FILE:SCALE,...",
            help="The same, applied with other scales.",
            default="none",
            joins="lora",
            read=values.lora_scaled,
            show=values.show_scaled_files,
        ),
    ] = ()
    lora_init_without_apply: Annotated[
        bool,
        _model(
            names="--lora-init-without-apply",
            help="Load the LoRA adapters with scale 0: requests, or POST /lora-adapters, "
            "apply them.",
        ),
    ] = False
    warmup: Annotated[
        bool,
        _model(
            names="--warmup",
            negative="--no-warmup",
            help="Run the model after loading, so that the first request is not slow, and "
            "measure what steps of some sizes take (at most 2 s; remembered for the next start).",
        ),
    ] = True

    def how_to_load(self) -> LoadMode:
        """What --load-mode says, or else the flags that mean the same; never auto."""
        if self.load_mode != "auto":
            return self.load_mode
        if self.direct_io:
            return "dio"
        if self.mlock:
            return "mmap+mlock" if self.mmap else "mlock"
        return "mmap" if self.mmap else "none"

    def aliases(self) -> list[str]:
        """The names of `--alias`, without repetition, in alphabetical order: the first is
        the model's id."""
        return sorted({name.strip() for name in self.alias.split(",") if name.strip()})
