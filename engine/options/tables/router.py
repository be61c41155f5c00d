"""Options of a server with several models."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import INT32_MAX, Opt

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
