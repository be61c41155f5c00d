"""The messages between the server and a process that decodes images, sounds, videos and PDF files.

A process works on one job at a time. Each `DecodeJob` is answered with one `Answer`.
`DecodingStarted` is followed by the pixels or samples in `DecodedPart`s: the server reads many
megabytes in small pieces, so that other requests get their turns in between.
"""

from typing import Final

import msgspec

from specllama.engine.wire.framing import Started
from specllama.engine.wire.media import Format, Page, VideoFormat


class Decode(msgspec.Struct, frozen=True, tag="decode"):
    """The file of an image or a sound, and the limits of its decoded size."""

    data: bytes
    format: Format
    max_pixels: int
    sample_rate: int  # sample rate of the decoded samples
    max_seconds: float


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A PDF file to read the texts of. The result is a `list[Page]` in MessagePack."""

    data: bytes
    max_pages: int
    max_characters: int  # of all pages


class Draw(msgspec.Struct, frozen=True, tag="draw"):
    """A PDF file, and the page to render as an image."""

    data: bytes
    page: int  # from 0


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """A video to take `fps` frames per second from (0: as many as it has), and the limits."""

    data: bytes
    format: VideoFormat
    fps: float
    max_frames: int
    max_seconds: float
    max_pixels: int  # of a frame in the file
    max_bytes: int  # of all frames; the frames of longer videos are reduced


class Decoded(msgspec.Struct, frozen=True):
    """The pixels or samples, in the format of `engine.wire.media.Media`, or the pages. Or all
    frames of a video, `fps` per second; `is_reduced`: their size was reduced."""

    data: bytes
    width: int = 0
    height: int = 0
    fps: float = 0.0
    is_reduced: bool = False


class DecodeRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The file can't be decoded, or is too large. `reason` is a sentence about the file, which it
    calls "it".

    A process that is `exhausted` ran out of memory and can't do another job.
    """

    reason: str
    exhausted: bool = False


class DecodingStarted(msgspec.Struct, frozen=True, tag="begun"):
    """The size of the parts that follow."""

    n_bytes: int
    width: int
    height: int
    fps: float = 0.0
    is_reduced: bool = False


class DecodedPart(msgspec.Struct, frozen=True, tag="part"):
    """The next bytes."""

    data: bytes


PART: Final = 1 << 18  # bytes

DecodeJob = Decode | Read | Draw | Sample
Answer = DecodingStarted | DecodeRefused

job_decoder = msgspec.msgpack.Decoder(DecodeJob)
pages_decoder = msgspec.msgpack.Decoder(list[Page])
answer_decoder = msgspec.msgpack.Decoder(Started | Answer | DecodedPart)
