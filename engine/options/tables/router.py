"""Options of a server with many models."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import INT32_MAX, Opt

_router = partial(Opt, group="Many models")


class RouterOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Which models there are, and which of them are in memory."""

    models_dir: Annotated[
        str,
        _router(
            names="--models-dir",
            env="LLAMA_ARG_MODELS_DIR",
            metavar="DIR",
            help="Serve the models in this directory: GGUF files, and folders that hold the "
            "files of one model.",
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
            help="INI file that names models, and the options of each.",
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
            help="List the package's own model beside others; where there is no other, it is "
            "listed in any case.",
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
            help="Most models in memory at a time; the one that was used least recently has to "
            "go (0: no limit).",
        ),
    ] = 4
    models_autoload: Annotated[
        bool,
        _router(
            names="--models-autoload",
            negative="--no-models-autoload",
            env="LLAMA_ARG_MODELS_AUTOLOAD",
            help="Load a model when a request names it; without, POST /models/load has to.",
        ),
    ] = True
