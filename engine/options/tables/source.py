"""Options of model downloads."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import text_values, values
from specllama.engine.options.declaration import Opt

_download = partial(Opt, group="Downloads")
_media = partial(Opt, group="Media")


class SourceOptions(msgspec.Struct, kw_only=True, frozen=True):
    """From where the server downloads a model and its projector."""

    hf_repo: Annotated[
        str,
        _download(
            names="-hf -hfr --hf-repo",
            env="LLAMA_ARG_HF_REPO",
            metavar="USER/REPO[:QUANT]",
            help="Repository on the Hugging Face Hub to load the model from. Files that are not "
            "in the cache are downloaded. Default of QUANT: Q4_K_M, else Q8_0, else that of the "
            "repository's first model.",
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
            help="File of --hf-repo to load. Overrides QUANT.",
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
            help="URL of a GGUF file to download and load.",
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
            help="OCI repository to load the model from. Files that are not in the cache are "
            "downloaded. Defaults: HOST is Docker Hub, TAG is latest, and a NAME without / "
            "is in the namespace ai/.",
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
            help="Repository on the Hugging Face Hub to load the draft model from; --model-draft "
            "may name its file.",
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
            help="URL of a multimodal projector to download and load.",
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
            help="Use the multimodal projector in the model's repository (--hf-repo), which is "
            "downloaded, too, or in its folder (--models-dir).",
        ),
    ] = True
    offline: Annotated[
        bool,
        _download(
            names="--offline",
            env="LLAMA_OFFLINE",
            also_env="LLAMA_ARG_OFFLINE",
            help="Use only cached files; never access the network.",
        ),
    ] = False

    def names_model(self) -> bool:
        """Returns whether an option names a model that may have to be downloaded."""
        return bool(self.hf_repo or self.model_url or self.docker_repo)


# ---- Options of one of several models.


_models = partial(Opt, group="Many models")


class EntryOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How long a model stays in memory, and its tags."""

    sleep_idle_seconds: Annotated[
        int,
        _models(
            names="--sleep-idle-seconds",
            metavar="SECONDS",
            help="Unload a model after this time without requests; the next request reloads it.",
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
            help="Tags of the model in the API. They have no effect on the server.",
            default="none",
            repeats=True,
            read=values.comma_separated,
            show=values.show_comma_separated,
        ),
    ] = ()
