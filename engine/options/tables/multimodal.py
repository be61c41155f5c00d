"""Options of what a model takes besides text."""

from functools import partial
from typing import Annotated, Final

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import Opt

MAX_IMAGE_TOKENS: Final = 100_000  # times the pixels of a token, libmtmd's numbers hold it
MAX_MEDIA_BYTES: Final = 128 << 20

_media = partial(Opt, group="Media")


class MediaOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The projector of images and sound, for the engine process."""

    mmproj: Annotated[
        str,
        _media(
            names="-mm --mmproj",
            env="LLAMA_ARG_MMPROJ",
            metavar="FILE",
            help="GGUF file that projects images and sound into the model's space.",
            default="the one found beside the model",
            excludes=("mmproj_url",),
            file=files.check_gguf,
        ),
    ] = ""
    mmproj_offload: Annotated[
        bool,
        _media(
            names="--mmproj-offload",
            negative="--no-mmproj-offload",
            env="LLAMA_ARG_MMPROJ_OFFLOAD",
            help="Run the projector on a GPU.",
        ),
    ] = True
    image_min_tokens: Annotated[
        int,
        _media(
            names="--image-min-tokens",
            env="LLAMA_ARG_IMAGE_MIN_TOKENS",
            metavar="N",
            min=-1,
            max=MAX_IMAGE_TOKENS,
            help="Fewest tokens that an image becomes, for models that take any size: smaller "
            "images are enlarged.",
            default="-1 (what the projector says)",
        ),
    ] = -1
    image_max_tokens: Annotated[
        int,
        _media(
            names="--image-max-tokens",
            env="LLAMA_ARG_IMAGE_MAX_TOKENS",
            metavar="N",
            min=-1,
            max=MAX_IMAGE_TOKENS,
            help="Most tokens that an image becomes, for models that take any size: larger images "
            "are made smaller.",
            default="-1 (what the projector says)",
        ),
    ] = -1
    media_cache: Annotated[
        int,
        _media(
            names="--media-cache",
            metavar="MIB",
            min=0,
            max=1 << 20,
            help="Memory for what images and sounds have become, so that one that was seen is not "
            "encoded again; 0: none.",
        ),
    ] = 256


class MediaInputOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Which media requests may have, and where these may come from."""

    media_path: Annotated[
        str,
        _media(
            names="--media-path",
            metavar="DIR",
            help="Directory of the files that requests may name as file://PATH, PATH being below "
            "it. A link that leads out of it is refused.",
            default="none (file:// is switched off)",
            file=files.check_readable_directory,
        ),
    ] = ""
    media_urls: Annotated[
        bool,
        _media(
            names="--media-urls",
            negative="--no-media-urls",
            help="Fetch the images and sounds that requests name by http:// and https://, from "
            "public addresses.",
        ),
    ] = False
    media_domains: Annotated[
        tuple[str, ...],
        _media(
            names="--media-domains",
            metavar="DOMAIN,...",
            help="The only domains that --media-urls fetches from, with those below them.",
            default="all",
            read=text_values.domains,
            show=values.show_comma_separated,
        ),
    ] = ()
    media_private_addresses: Annotated[
        bool,
        _media(
            names="--media-private-addresses",
            negative="--no-media-private-addresses",
            help="Let --media-urls reach this machine and private networks, too: whoever sends "
            "requests can then ask any server there.",
        ),
    ] = False
    media_timeout: Annotated[
        float,
        _media(
            names="--media-timeout",
            metavar="SECONDS",
            min=0.1,
            max=600,
            help="Longest time to fetch one image or sound, redirects included.",
        ),
    ] = 10.0
    media_max_bytes: Annotated[
        int,
        _media(
            names="--media-max-bytes",
            metavar="N",
            min=1,
            max=MAX_MEDIA_BYTES,
            help="Most bytes that the files of all images and sounds of a request have together.",
        ),
    ] = 64 << 20
    media_max_seconds: Annotated[
        int,
        _media(
            names="--media-max-seconds",
            metavar="SECONDS",
            min=1,
            max=3600,
            help="Longest time that all sounds of a request play together.",
        ),
    ] = 1800
    media_max_count: Annotated[
        int,
        _media(
            names="--media-max-count",
            metavar="N",
            min=1,
            max=1024,
            help="Most images and sounds of a request.",
        ),
    ] = 64
