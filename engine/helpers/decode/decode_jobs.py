"""The messages between the server and a process that decodes images and sounds.

A process works on one job at a time. Each `DecodeJob` is answered with one `Answer`;
`DecodingStarted` has the pixels or samples behind it, in `DecodedPart`s: the server reads many
megabytes in small pieces, so that others have their turns in between.
"""

from typing import Final

import msgspec

from specllama.engine.wire.framing import Started
from specllama.engine.wire.media import Format, Page


class Decode(msgspec.Struct, frozen=True, tag="decode"):
    """A file of an image or a sound, and how large it may be when it is decoded."""

    data: bytes
    format: Format
    max_pixels: int
    sample_rate: int  # of the samples that are wanted
    max_seconds: float


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A PDF file whose texts are wanted: a `list[Page]` in MessagePack."""

    data: bytes
    max_pages: int
    max_characters: int  # of all pages


class Draw(msgspec.Struct, frozen=True, tag="draw"):
    """A PDF file, one of whose pages is wanted as a picture."""

    data: bytes
    page: int  # from 0


class Decoded(msgspec.Struct, frozen=True):
    """The pixels or samples, as `engine.wire.media.Media` has them, or the pages."""

    data: bytes
    width: int = 0
    height: int = 0


class DecodeRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The file can't be decoded, or is too large: why, as the rest of a sentence about it.

    A process that is `exhausted` ran out of memory, and is not fit for another job.
    """

    reason: str
    exhausted: bool = False


class DecodingStarted(msgspec.Struct, frozen=True, tag="begun"):
    """The size of what follows."""

    n_bytes: int
    width: int
    height: int


class DecodedPart(msgspec.Struct, frozen=True, tag="part"):
    """The next bytes."""

    data: bytes


PART: Final = 1 << 18  # bytes

DecodeJob = Decode | Read | Draw
Answer = DecodingStarted | DecodeRefused

job_decoder = msgspec.msgpack.Decoder(DecodeJob)
pages_decoder = msgspec.msgpack.Decoder(list[Page])
answer_decoder = msgspec.msgpack.Decoder(Started | Answer | DecodedPart)
