"""What is asked of the process that fetches and decodes media."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.protocol.media import Media, MediaKind


class MediaSource(msgspec.Struct, frozen=True):
    """Where an image or a sound is: its bytes, or a URL. `where` is its place in the request, for
    errors. Without a `kind` its bytes tell."""

    where: str
    kind: MediaKind | None = None
    data: bytes = b""
    url: str = ""


class Decoder(Protocol):
    """Fetches and decodes."""

    async def decode(self, sources: Sequence[MediaSource], *, sample_rate: int) -> list[Media]: ...
