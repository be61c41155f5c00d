"""Options of a server with several models."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.engine.options.text_values import (
    MAX_SIZE,
    MemorySize,
    memory_sizes,
    show_memory_sizes,
)

_router = partial(Opt, group="Many models")


class RouterOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The models that the server lists, and how many it keeps in memory."""

    models_dir: Annotated[
        str,
        _router(
            names="--models-dir",
            env="LLAMA_ARG_MODELS_DIR",
            metavar="DIR",
            help="Directory of models to serve: GGUF files, and folders with the files of one or "
            "more models each.",
            default="none",
            file=files.check_readable_directory,
        ),
    ] = ""
    models_preset: Annotated[
        str,
        _router(
            names="--models-preset",
            env="LLAMA_ARG_MODELS_PRESET",
            metavar="FILE",
            help="INI file that names models and their options.",
            default="none",
            file=files.read_text,
        ),
    ] = ""
    models_shipped: Annotated[
        bool,
        _router(
            names="--models-shipped",
            negative="--no-models-shipped",
            env="LLAMA_ARG_MODELS_SHIPPED",
            help="List the shipped model along with other models. Without other models, it is "
            "always listed.",
        ),
    ] = False
    models_max: Annotated[
        int,
        _router(
            names="--models-max",
            env="LLAMA_ARG_MODELS_MAX",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Maximum number of models in memory (0: no limit). The least recently used one "
            "is unloaded first.",
        ),
    ] = 4
    models_memory: Annotated[
        tuple[MemorySize, ...],
        _router(
            names="--models-memory",
            env="LLAMA_ARG_MODELS_MEMORY",
            metavar="[DEVICE=]SIZE,...",
            help="Memory that all models together may take, in MiB or as a percentage of the "
            "device's memory: 16000, 80%, or host=16000,CUDA0=90%,gpu=20000. Without a DEVICE it "
            "is the host's memory; gpu stands for each GPU without a size of its own. The least "
            "recently used models make room for others.",
            default="no limit",
            read=memory_sizes,
            show=show_memory_sizes,
        ),
    ] = ()
    models_memory_margin: Annotated[
        int,
        _router(
            names="--models-memory-margin",
            env="LLAMA_ARG_MODELS_MEMORY_MARGIN",
            metavar="MIB",
            min=0,
            max=MAX_SIZE,
            help="Memory that models leave free on each device, in MiB, of the memory that is free "
            "when the server starts (0: no limit).",
        ),
    ] = 0
    models_keep_alive: Annotated[
        int,
        _router(
            names="--models-keep-alive",
            env="LLAMA_ARG_MODELS_KEEP_ALIVE",
            metavar="SECONDS",
            min=0,
            max=INT32_MAX,
            help="Maximum time for which a request's keep_alive keeps its model in memory.",
        ),
    ] = 300
    models_autoload: Annotated[
        bool,
        _router(
            names="--models-autoload",
            negative="--no-models-autoload",
            env="LLAMA_ARG_MODELS_AUTOLOAD",
            help="Load a model when a request names it. With --no-models-autoload, only POST "
            "/models/load loads models.",
        ),
    ] = True

    def measures(self) -> bool:
        """Returns whether the memory of models is limited, so that it has to be measured."""
        return bool(self.models_memory or self.models_memory_margin)
