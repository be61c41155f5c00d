"""Options of where a model is downloaded from."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import text_values, values
from specllama.engine.options.declaration import Opt

_download = partial(Opt, group="Downloads")
_media = partial(Opt, group="Media")


class SourceOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Where a model that isn't on this machine comes from, and its projector."""

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
            read=text_values.hf_repo,
            excludes=("model", "model_url", "docker_repo"),
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
            read=text_values.hf_file,
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
            read=text_values.token,
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
            read=text_values.url,
            excludes=("model", "hf_repo", "docker_repo"),
            supersedes=("hf_file",),
        ),
    ] = ""
    docker_repo: Annotated[
        str,
        _download(
            names="-dr --docker-repo",
            env="LLAMA_ARG_DOCKER_REPO",
            metavar="[HOST/]NAME[:TAG]",
            help="Load a model of an OCI registry, downloading what is not in the cache yet: of "
            "Docker Hub without HOST, of its ai/ if NAME has no /; without TAG it is latest.",
            default="none",
            read=text_values.docker_repo,
            excludes=("model", "hf_repo", "model_url"),
            supersedes=("hf_file",),
        ),
    ] = ""
    hf_repo_draft: Annotated[
        str,
        _download(
            names="-hfd -hfrd --hf-repo-draft --spec-draft-hf",
            env="LLAMA_ARG_HFD_REPO",
            also_env="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
            metavar="USER/REPO[:QUANT]",
            help="The same as --hf-repo, for the draft model; --model-draft may name the file.",
            default="none",
            read=text_values.hf_repo,
            supersedes=("model_draft",),
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
            read=text_values.url,
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
    offline: Annotated[
        bool,
        _download(
            names="--offline",
            env="LLAMA_OFFLINE",
            also_env="LLAMA_ARG_OFFLINE",
            help="Use what the cache holds, and never the network.",
        ),
    ] = False

    def names_model(self) -> bool:
        """Whether a model is named that may have to be downloaded."""
        return bool(self.hf_repo or self.model_url or self.docker_repo)


# ---- Options of one model among many.


_models = partial(Opt, group="Many models")


class EntryOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How long a model stays in memory, and what people read about it."""

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
