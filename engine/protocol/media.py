"""Images and sound on their way into a prompt."""

from typing import Literal

import msgspec

MediaKind = Literal["image", "audio"]


class Media(msgspec.Struct, frozen=True):
    """A decoded image or sound at its place in a prompt.

    `digest`, the SHA-256 of the bytes it came in, is its identity. `data` are an image's RGB rows,
    three bytes a pixel, or a sound's samples: 32-bit floats, little-endian, one channel, at the
    rate that the projector asks for. `width` and `height` are pixels, and 0 for sound.
    """

    kind: MediaKind
    digest: bytes
    data: bytes
    width: int = 0
    height: int = 0
