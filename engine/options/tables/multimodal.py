"""Options of image, sound and video input."""

from functools import partial
from typing import Annotated, Final

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import INT32_MAX, Opt

MAX_IMAGE_TOKENS: Final = (
    100_000  # libmtmd multiplies it by a token's pixels; the product must fit its integers
)
MAX_MEDIA_BYTES: Final = 128 << 20

_media = partial(Opt, group="Media")


class MediaOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The multimodal projector, for the engine process."""

    mmproj: Annotated[
        str,
        _media(
            names="-mm --mmproj",
            env="LLAMA_ARG_MMPROJ",
            metavar="FILE",
            help="GGUF file of the multimodal projector, for images and sound.",
            default="see --mmproj-auto",
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
            help="Run the multimodal projector on a GPU.",
        ),
    ] = True
    mmproj_device: Annotated[
        str,
        _media(
            names="-mmdev --mmproj-device",
            env="MTMD_BACKEND_DEVICE",
            metavar="NAME",
            help="Device that the multimodal projector runs on, by the name that --list-devices "
            "prints; none disables offloading it.",
            default="the first one of --device",
        ),
    ] = ""
    mtmd_batch_max_tokens: Annotated[
        int,
        _media(
            names="--mtmd-batch-max-tokens",
            env="LLAMA_ARG_MTMD_BATCH_MAX_TOKENS",
            metavar="N",
            min=-1,
            max=INT32_MAX,
            help="Maximum number of tokens of the images that are encoded together; a single "
            "image may have more. 0 or -1: encode each image by itself.",
        ),
    ] = 1024
    image_min_tokens: Annotated[
        int,
        _media(
            names="--image-min-tokens",
            env="LLAMA_ARG_IMAGE_MIN_TOKENS",
            metavar="N",
            min=-1,
            max=MAX_IMAGE_TOKENS,
            help="Minimum number of tokens for an image, for models with dynamic resolution. "
            "Smaller images are enlarged.",
            default="-1 (the projector's own)",
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
            help="Maximum number of tokens for an image, for models with dynamic resolution. "
            "Larger images are reduced.",
            default="-1 (the projector's own)",
        ),
    ] = -1
    media_cache: Annotated[
        int,
        _media(
            names="--media-cache",
            metavar="MIB",
            min=0,
            max=1 << 20,
            help="Memory in MiB for the embeddings of images and sounds, so that repeated ones "
            "aren't encoded again (0: disable).",
        ),
    ] = 256


class MediaInputOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Which media requests may contain, and from where the server may load them."""

    media_path: Annotated[
        str,
        _media(
            names="--media-path",
            metavar="DIR",
            help="Directory of the files that requests may load with file://PATH, where PATH is "
            "relative to it. Links out of the directory are rejected.",
            default="none (file:// is disabled)",
            file=files.check_readable_directory,
        ),
    ] = ""
    media_urls: Annotated[
        bool,
        _media(
            names="--media-urls",
            negative="--no-media-urls",
            help="Load images, sounds and videos from the http:// and https:// URLs in requests, "
            "from public addresses only.",
        ),
    ] = False
    media_domains: Annotated[
        tuple[str, ...],
        _media(
            names="--media-domains",
            metavar="DOMAIN,...",
            help="Restrict --media-urls to these domains and their subdomains.",
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
            help="Let --media-urls also load from this machine and private networks. Every "
            "client can then send requests to any server there.",
        ),
    ] = False
    media_timeout: Annotated[
        float,
        _media(
            names="--media-timeout",
            metavar="SECONDS",
            min=0.1,
            max=600,
            help="Maximum time to load one image, sound or video, including redirects.",
        ),
    ] = 10.0
    media_max_bytes: Annotated[
        int,
        _media(
            names="--media-max-bytes",
            metavar="N",
            min=1,
            max=MAX_MEDIA_BYTES,
            help="Maximum total size of all image, sound and video files of a request, in bytes.",
        ),
    ] = 64 << 20
    media_max_seconds: Annotated[
        int,
        _media(
            names="--media-max-seconds",
            metavar="SECONDS",
            min=1,
            max=3600,
            help="Maximum duration of a video, and maximum total duration of all sounds of a "
            "request.",
        ),
    ] = 1800
    media_max_count: Annotated[
        int,
        _media(
            names="--media-max-count",
            metavar="N",
            min=1,
            max=1024,
            help="Maximum number of images, sounds and videos of a request.",
        ),
    ] = 64
    video_fps: Annotated[
        float,
        _media(
            names="--video-fps",
            env="LLAMA_ARG_VIDEO_FPS",
            metavar="N",
            min=-1,
            max=1000,
            help="Number of frames to take from a video per second (0 or less: the video's own "
            "rate).",
        ),
    ] = 4.0
    video_timestamp_interval: Annotated[
        int,
        _media(
            names="--video-timestamp-interval",
            env="LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL",
            metavar="MS",
            min=-1,
            max=3_600_000,
            help="Interval in ms between texts with times in the frames of a video (0 or less: no "
            "times).",
        ),
    ] = 5000
    video_max_frames: Annotated[
        int,
        _media(
            names="--video-max-frames",
            metavar="N",
            min=1,
            max=4096,
            help="Maximum number of frames of all videos of a request.",
        ),
    ] = 512
