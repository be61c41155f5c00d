"""Options of what a model takes besides text."""

from functools import partial
from typing import Annotated

import msgspec

from engine.options import files, values
from engine.options.declaration import Opt

_media = partial(Opt, group="Media")


class MediaOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The projector of images and sound."""

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
            file=files.check_gguf,
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
