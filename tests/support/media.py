"""Images, frames of videos, and sounds for tests."""

import hashlib

import numpy as np

from specllama.engine.wire.media import Media


def image(seed: int, width: int = 40, height: int = 30) -> Media:
    """Returns an image of coloured squares, different for each `seed`."""
    rng = np.random.default_rng(seed)
    squares = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    pixels = squares.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    data = np.ascontiguousarray(pixels).tobytes()
    return Media("image", hashlib.sha256(data).digest(), data, width, height)


def frames(*seeds: int, width: int = 40, height: int = 30) -> Media:
    """Returns successive frames of a video, different for each seed."""
    data = b"".join(image(seed, width, height).data for seed in seeds)
    digest = hashlib.sha256(data).digest()
    return Media("image", digest, data, width, height, len(seeds))


def sound(seed: int, seconds: float = 3.0, sample_rate: int = 16_000) -> Media:
    """Returns a sound of some notes, different for each `seed`."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * sample_rate)) / sample_rate
    pitches = rng.uniform(100, 2000, len(times) // (sample_rate // 4) + 1).repeat(sample_rate // 4)
    wave = np.sin(2 * np.pi * pitches[: len(times)] * times) * 0.5
    data = wave.astype("<f4").tobytes()
    return Media("audio", hashlib.sha256(data).digest(), data)
