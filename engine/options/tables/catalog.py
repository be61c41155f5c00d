"""Options of where models come from, and of a server with many of them."""

from functools import partial
from typing import Annotated

from engine.options import values
from engine.options.declaration import INT32_MAX, Opt
from engine.options.tables.embedding import EmbeddingOptions

_download = partial(Opt, group="Downloads")
_media = partial(Opt, group="Media")
_models = partial(Opt, group="Many models")
_router = partial(_models, scope="server")


class CatalogOptions(EmbeddingOptions, kw_only=True, frozen=True):
    """Where models are found, and which of them are in memory."""

    # ---- downloads ----------------------------------------------------------------------

    hf_repo: Annotated[
        str,
        _download(
            names="-hf -hfr --hf-repo",
            env="LLAMA_ARG_HF_REPO",
            metavar="USER/REPO[:QUANT]",
            help="Load a model of this repository on the Hugging Face Hub, downloading what is "
            "not in the cache yet; without QUANT it is Q4_K_M, or else the repository's first "
            "file.",
            default="none",
            read=values.hf_repo,
            excludes=("model", "model_url"),
            supersedes=("hf_file",),
        ),
    ] = ""
    hf_file: Annotated[
        str,
        _download(
            names="-hff --hf-file",
            env="LLAMA_ARG_HF_FILE",
            metavar="FILE",
            help="The file of --hf-repo to load, whatever its QUANT says.",
            default="none",
            read=values.hf_file,
        ),
    ] = ""
    hf_token: Annotated[
        str,
        _download(
            names="-hft --hf-token",
            env="HF_TOKEN",
            metavar="TOKEN",
            help="Access token for the Hugging Face Hub.",
            default="none",
            read=values.token,
            secret=True,
        ),
    ] = ""
    model_url: Annotated[
        str,
        _download(
            names="-mu --model-url",
            env="LLAMA_ARG_MODEL_URL",
            metavar="URL",
            help="Load the GGUF file at this address, downloading it first.",
            default="none",
            read=values.url,
            excludes=("model", "hf_repo"),
            supersedes=("hf_file",),
        ),
    ] = ""
    offline: Annotated[
        bool,
        _download(
            names="--offline",
            env="LLAMA_OFFLINE",
            help="Use what the cache holds, and never the network.",
        ),
    ] = False
    cache_list: Annotated[
        bool,
        _download(
            names="-cl --cache-list",
            help="Print the models in the cache and exit.",
            scope="server",
        ),
    ] = False

    # ---- media --------------------------------------------------------------------------

    mmproj: Annotated[
        str,
        _media(
            names="-mm --mmproj",
            env="LLAMA_ARG_MMPROJ",
            metavar="FILE",
            help="GGUF file that projects images and sound into the model's space. Without "
            "effect for now: text is the only input.",
            default="the one found beside the model",
            excludes=("mmproj_url",),
        ),
    ] = ""
    mmproj_url: Annotated[
        str,
        _media(
            names="-mmu --mmproj-url",
            env="LLAMA_ARG_MMPROJ_URL",
            metavar="URL",
            help="The same, downloaded from this address.",
            default="none",
            read=values.url,
            excludes=("mmproj",),
        ),
    ] = ""
    mmproj_auto: Annotated[
        bool,
        _media(
            names="--mmproj-auto",
            negative="--no-mmproj --no-mmproj-auto",
            env="LLAMA_ARG_MMPROJ_AUTO",
            help="Take the projector of --hf-repo as well, if it has one.",
        ),
    ] = True

    # ---- many models --------------------------------------------------------------------

    models_dir: Annotated[
        str,
        _router(
            names="--models-dir",
            env="LLAMA_ARG_MODELS_DIR",
            metavar="DIR",
            help="Serve the models in this directory: GGUF files, and folders that hold the "
            "files of one model.",
            default="none",
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
        ),
    ] = ""
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
    sleep_idle_seconds: Annotated[
        int,
        _models(
            names="--sleep-idle-seconds",
            metavar="SECONDS",
            help="Give a model's memory back after so long without requests, until the next one.",
            read=values.idle_seconds,
            default="-1 (never)",
        ),
    ] = -1
    tags: Annotated[
        tuple[str, ...],
        _models(
            names="--tags",
            env="LLAMA_ARG_TAGS",
            metavar="TAG,...",
            help="Words that the API shows beside the model, for people.",
            default="none",
            repeats=True,
            read=values.comma_separated,
            show=values.show_comma_separated,
        ),
    ] = ()
