"""Decodes the file of a sound to samples, with the library and the settings of llama-server."""

from typing import Final

import miniaudio
import numpy as np

from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused
from specllama.engine.wire.media import SoundFormat

AT_ONCE: Final = 1 << 14  # samples
LOUDEST: Final = 1e6  # samples are at most 1 normally; squares of this value can still be added up


def decode_sound(
    data: bytes, format: SoundFormat, sample_rate: int, max_seconds: float
) -> Decoded | DecodeRefused:
    """Returns the samples of one channel. Raises any exception of the library for damaged files."""
    duration = 0.0
    if format == "WAV":
        duration = miniaudio.wav_get_info(data).duration
    elif format == "FLAC":
        duration = miniaudio.flac_get_info(data).duration
    if duration > max_seconds:
        return DecodeRefused(_too_long(max_seconds))
    samples, most = bytearray(), int(max_seconds * sample_rate) * 4
    for some in miniaudio.stream_memory(
        data, miniaudio.SampleFormat.FLOAT32, 1, sample_rate, frames_to_read=AT_ONCE
    ):
        samples += memoryview(some)
        if len(samples) > most:
            return DecodeRefused(_too_long(max_seconds))
    if not samples:
        return DecodeRefused("it contains no sound")
    values = np.frombuffer(samples, "<f4")
    if not -LOUDEST <= float(values.min()) <= float(values.max()) <= LOUDEST:  # also false for NaN
        return DecodeRefused("its samples are out of range")
    return Decoded(bytes(samples))


def _too_long(seconds: float) -> str:
    return f"it is longer than the {seconds:g} s that are allowed"
