"""The cache of decoded media."""

from specllama.engine.media.kept import KEEP_SECONDS, Kept
from specllama.engine.wire.media import Document, Media


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def image(name: bytes, size: int = 3) -> Media:
    return Media("image", name, bytes(size), 1, 1)


def test_the_most_recently_used_entry_stays() -> None:
    kept = Kept(Clock(), n_bytes=9)
    for name in (b"a", b"b", b"c"):
        kept.put(image(name), 0)
    assert kept.get(b"a", 0) == image(b"a")
    kept.put(image(b"d"), 0)
    assert kept.get(b"b", 0) is None
    assert all(kept.get(name, 0) for name in (b"a", b"c", b"d"))
    kept.put(image(b"e", 10), 0)  # more than all room
    assert len(kept) == 3


def test_a_sound_is_that_of_its_rate() -> None:
    kept = Kept(Clock())
    sound = Media("audio", b"s", bytes(8))
    kept.put(sound, 16000)
    kept.put(image(b"i"), 16000)
    assert kept.get(b"s", 16000) == sound
    assert kept.get(b"s", 24000) is None
    assert kept.get(b"s", 0) is None
    assert kept.get(b"i", 24000) == kept.get(b"i", 0) == image(b"i")


def test_the_parts_of_a_video() -> None:
    kept = Kept(Clock(), n_bytes=9)
    video = Document(["Video:", image(b"a"), "[0m0.00s]", image(b"b")], b"v")
    kept.put(video, 16000)
    assert kept.get(b"v", 0) == kept.get(b"v", 16000) == video
    kept.put(image(b"c", 4), 0)  # 10 bytes together
    assert kept.get(b"v", 0) is None


def test_only_for_a_while() -> None:
    clock = Clock()
    kept = Kept(clock)
    kept.put(image(b"a"), 0)
    kept.put(image(b"b"), 0)
    clock.now = KEEP_SECONDS - 1
    assert kept.get(b"a", 0)
    clock.now = KEEP_SECONDS + 1
    kept.expire()
    assert len(kept) == 1
    assert kept.get(b"b", 0) is None
    assert kept.get(b"a", 0)


def test_the_size_is_that_of_the_entries() -> None:
    kept = Kept(Clock(), n_bytes=6)
    for _ in range(9):
        kept.put(image(b"a"), 0)
        kept.put(image(b"b"), 0)
    assert len(kept) == 2
