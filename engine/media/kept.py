"""Decoded media that were used lately: a chat sends the same images with every turn."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from specllama.engine.wire.media import Media

KEEP_SECONDS: Final = 600.0  # since its last use
KEEP_BYTES: Final = 128 << 20  # of all

Key = tuple[bytes, int]
"""The digest of the file, and the sample rate; 0 for an image."""


class Kept:
    """The media that were used last, by the digests of their files.

    `clock` tells the time in seconds. What is too old is let go of at the next use of anything,
    or by `expire`.
    """

    def __init__(self, clock: Callable[[], float], n_bytes: int = KEEP_BYTES) -> None:
        self._clock = clock
        self._n_bytes = n_bytes
        self._size = 0
        self._media: OrderedDict[Key, tuple[Media, float]] = OrderedDict()

    def get(self, digest: bytes, sample_rate: int) -> Media | None:
        """The medium of the file, as image or as sound of this rate."""
        self.expire()
        for key in ((digest, 0), (digest, sample_rate)):
            if (found := self._media.pop(key, None)) is not None:
                self._media[key] = found[0], self._clock()
                return found[0]
        return None

    def put(self, media: Media, sample_rate: int) -> None:
        """Keep it, and let go of others where it needs their room."""
        key = media.digest, sample_rate if media.kind == "audio" else 0
        if len(media.data) > self._n_bytes or key in self._media:
            return
        self._media[key] = media, self._clock()
        self._size += len(media.data)
        while self._size > self._n_bytes:
            self._drop()

    def expire(self) -> None:
        """Let go of what was not used for a while."""
        oldest = self._clock() - KEEP_SECONDS
        while self._media and next(iter(self._media.values()))[1] < oldest:
            self._drop()

    def __len__(self) -> int:
        return len(self._media)

    def _drop(self) -> None:
        _, (media, _) = self._media.popitem(last=False)
        self._size -= len(media.data)
