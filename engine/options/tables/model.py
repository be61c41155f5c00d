"""Options of the model: its file, and how to load it."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options import files, values
from specllama.engine.options.declaration import Opt, Switch

LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]

_model = partial(Opt, group="Model")


class ModelOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The model's file, and how to load it."""

    model: Annotated[
        str,
        _model(
            names="-m --model",
            env="LLAMA_ARG_MODEL",
            metavar="FILE",
            help="GGUF file of the model.",
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
            help="Names of the model in the API.",
            default="the model's path or repository, or the file name in its URL",
        ),
    ] = ""
    mmap: Annotated[
        bool,
        _model(
            names="--mmap",
            negative="--no-mmap",
            env="LLAMA_ARG_MMAP",
            help="Map the model file into memory. With --no-mmap, loading is slower, but the "
            "system doesn't drop pages of the model and read them again.",
            replaces=("load_mode",),
        ),
    ] = True
    mlock: Annotated[
        bool,
        _model(
            names="--mlock",
            env="LLAMA_ARG_MLOCK",
            help="Lock the model in RAM, so that the system neither swaps nor compresses it.",
            replaces=("load_mode",),
        ),
    ] = False
    direct_io: Annotated[
        bool,
        _model(
            names="-dio --direct-io",
            negative="-ndio --no-direct-io",
            env="LLAMA_ARG_DIO",
            help="Read the model file with direct I/O, bypassing the page cache, instead of "
            "--mmap.",
            replaces=("load_mode",),
        ),
    ] = False
    load_mode: Annotated[
        LoadMode,
        _model(
            names="-lm --load-mode",
            env="LLAMA_ARG_LOAD_MODE",
            metavar="MODE",
            help="One option for --mmap, --mlock and --direct-io; auto follows these three.",
            replaces=("mmap", "mlock", "direct_io"),
        ),
    ] = "auto"
    lazy_mode: Annotated[
        Switch,
        _model(
            names="-lzm --lazy-mode",
            env="LLAMA_ARG_LAZY_MODE",
            metavar="[on|off|auto]",
            help="Read rows of large tensors, such as per-layer embeddings, from the file when "
            "they are needed; auto does so for tensors above 4 GiB. Needs --mmap.",
            read=values.switch,
        ),
    ] = "auto"
    repack: Annotated[
        bool,
        _model(
            names="--repack",
            negative="-nr --no-repack",
            env="LLAMA_ARG_REPACK",
            help="Repack weights in memory for faster computation on the CPU.",
        ),
    ] = True
    no_host: Annotated[
        bool,
        _model(
            names="--no-host",
            env="LLAMA_ARG_NO_HOST",
            help="Don't use the GPUs' host buffers for weights, so that the weights can be "
            "repacked.",
        ),
    ] = False
    check_tensors: Annotated[
        bool,
        _model(names="--check-tensors", help="Check the model's tensors for invalid values."),
    ] = False
    override_kv: Annotated[
        tuple[str, ...],
        _model(
            names="--override-kv",
            metavar="KEY=TYPE:VALUE,...",
            help="Override metadata of the model file, for example "
            "tokenizer.ggml.add_bos_token=bool:false. TYPE is int, float, bool or str.",
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
            help="Add control vectors, which steer the output of layers, with scale 1.",
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
            help="Add control vectors, each multiplied by its scale.",
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
            help="First and last layer (counted from 1) that control vectors apply to.",
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
            help="Load LoRA adapters with scale 1. The id of an adapter is its position among "
            "all --lora and --lora-scaled files, from 0.",
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
            help="Load LoRA adapters with the given scales.",
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
            help="Load LoRA adapters with scale 0. Requests or POST /lora-adapters set other "
            "scales.",
        ),
    ] = False
    warmup: Annotated[
        bool,
        _model(
            names="--warmup",
            negative="--no-warmup",
            help="Run the model once after loading, so that the first request isn't slow, and "
            "measure the duration of steps of some sizes until the first request (2 s at most; "
            "stored for the next start).",
        ),
    ] = True

    def how_to_load(self) -> LoadMode:
        """Returns --load-mode, or the mode that the separate flags stand for; never auto."""
        if self.load_mode != "auto":
            return self.load_mode
        if self.direct_io:
            return "dio"
        if self.mlock:
            return "mmap+mlock" if self.mmap else "mlock"
        return "mmap" if self.mmap else "none"

    def aliases(self) -> list[str]:
        """Returns the names of `--alias` without repetition, in alphabetical order. The first one
        is the model's id."""
        return sorted({name.strip() for name in self.alias.split(",") if name.strip()})
