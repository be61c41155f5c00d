"""The messages between the server and a process that decodes images and sounds.

A process works on one job at a time; each `Decode` is answered with one `Answer`.
"""

import msgspec

from engine.media.formats import Format
from engine.processes.framing import Started


class Decode(msgspec.Struct, frozen=True):
    """A file of an image or a sound, and how large it may be when it is decoded."""

    data: bytes
    format: Format
    max_pixels: int
    sample_rate: int  # of the samples that are wanted
    max_seconds: float


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    """The pixels or samples, as `engine.protocol.media.Media` has them."""

    data: bytes
    width: int = 0
    height: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The file can't be decoded, or is too large: why, as the rest of a sentence about it.

    A process that is `exhausted` ran out of memory, and is not fit for another job.
    """

    reason: str
    exhausted: bool = False


Answer = Decoded | Refused

decode_decoder = msgspec.msgpack.Decoder(Decode)
answer_decoder = msgspec.msgpack.Decoder(Started | Answer)
