"""A cache of decoded media: a chat sends the same images with every turn."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from specllama.engine.wire.media import Document, Media

KEEP_SECONDS: Final = 600.0  # after its last use
KEEP_BYTES: Final = 128 << 20  # of all media together

Key = tuple[bytes, int]
"""The digest of the file, and the sample rate; 0 for an image or a video."""


class Kept:
    """A cache of recently used media, by the digests of their files.

    `clock` returns the time in seconds. Expired media are removed at the next use of the cache, or
    by `expire`.
    """

    def __init__(self, clock: Callable[[], float], n_bytes: int = KEEP_BYTES) -> None:
        self._clock = clock
        self._n_bytes = n_bytes
        self._size = 0
        self._media: OrderedDict[Key, tuple[Media | Document, float]] = OrderedDict()

    def get(self, digest: bytes, sample_rate: int) -> Media | Document | None:
        """Returns the medium of the file with this digest, as image or as sound of this rate; None
        if it isn't cached."""
        self.expire()
        for key in ((digest, 0), (digest, sample_rate)):
            if (found := self._media.pop(key, None)) is not None:
                self._media[key] = found[0], self._clock()
                return found[0]
        return None

    def put(self, media: Media | Document, sample_rate: int) -> None:
        """Adds a medium or the parts of a video, and removes the least recently used ones if all
        exceed the size."""
        is_sound = isinstance(media, Media) and media.kind == "audio"
        key = media.digest, sample_rate if is_sound else 0
        size = _size(media)
        if size > self._n_bytes or key in self._media:
            return
        self._media[key] = media, self._clock()
        self._size += size
        while self._size > self._n_bytes:
            self._drop()

    def expire(self) -> None:
        """Removes expired media."""
        oldest = self._clock() - KEEP_SECONDS
        while self._media and next(iter(self._media.values()))[1] < oldest:
            self._drop()

    def __len__(self) -> int:
        return len(self._media)

    def _drop(self) -> None:
        _, (media, _) = self._media.popitem(last=False)
        self._size -= _size(media)


def _size(media: Media | Document) -> int:
    """Returns the number of bytes of the pixels or samples."""
    if isinstance(media, Media):
        return len(media.data)
    return sum(len(part.data) for part in media.parts if isinstance(part, Media))
