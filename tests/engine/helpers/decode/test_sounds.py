"""Samples of sounds, and errors for sounds that can't be decoded."""

import math
import struct

import pytest

from specllama.engine.helpers.decode.decode_jobs import Decode, Decoded, DecodeRefused
from specllama.engine.helpers.decode.decode_main import answer
from specllama.engine.wire.media import SoundFormat
from tests.support.media_files import (
    N_SAMPLES,
    RATE,
    SOUNDS,
    flac_file,
    mp3_file,
    tone,
    wav_file,
)


def tried(
    data: bytes, format: SoundFormat = "WAV", rate: int = RATE, seconds: float = 10
) -> Decoded | DecodeRefused:
    return answer(Decode(data, format, 0, rate, seconds))


def samples(data: bytes, format: SoundFormat = "WAV", rate: int = RATE) -> list[float]:
    found = tried(data, format, rate)
    assert isinstance(found, Decoded)
    assert (found.width, found.height) == (0, 0)
    return list(struct.unpack(f"<{len(found.data) // 4}f", found.data))


def test_samples_at_the_same_rate_stay_as_they_are() -> None:
    expected = [struct.unpack("<f", struct.pack("<f", value))[0] for value in tone()]
    assert samples(wav_file()) == expected


def test_another_rate() -> None:
    found = samples(wav_file(tone(4800, 48000), 48000))
    assert abs(len(found) - 1600) <= 2
    power = math.sqrt(sum(value * value for value in found) / len(found))
    assert power == pytest.approx(0.5 / math.sqrt(2), rel=0.05)


def test_channels_become_one() -> None:
    assert samples(wav_file(channels=2)) == pytest.approx(samples(wav_file()), abs=1e-6)


def test_flac_and_mp3() -> None:
    assert samples(flac_file(value=8192), "FLAC") == [0.25] * 768
    silence = samples(mp3_file(20), "MP3", 44100)
    assert 18 * 1152 <= len(silence) <= 20 * 1152
    assert max(map(abs, silence)) < 1e-3


@pytest.mark.parametrize("format", SOUNDS)
def test_as_long_as_there_may_be(format: SoundFormat) -> None:
    found = tried(SOUNDS[format], format)
    assert isinstance(found, Decoded)
    seconds = len(found.data) / 4 / RATE
    assert tried(SOUNDS[format], format, seconds=seconds + 0.001) == found
    refused = tried(SOUNDS[format], format, seconds=seconds - 0.001)
    assert isinstance(refused, DecodeRefused)
    assert "is longer than" in refused.reason


def test_a_header_that_promises_more_than_there_is() -> None:
    data = bytearray(wav_file())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 0x7FFFFFF0)
    found = tried(bytes(data))
    assert isinstance(found, DecodeRefused) or len(found.data) == 4 * N_SAMPLES


def test_a_rate_that_makes_a_little_file_long() -> None:
    refused = tried(wav_file(tone(), rate=1))
    assert isinstance(refused, DecodeRefused)
    assert "is longer than" in refused.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_samples_that_are_no_numbers(value: float) -> None:
    assert tried(wav_file([0.5, value, 0.25])) == DecodeRefused("its samples are out of range")


def test_no_samples() -> None:
    assert isinstance(tried(wav_file([])), DecodeRefused)


@pytest.mark.parametrize("format", SOUNDS)
def test_truncated_files(format: SoundFormat) -> None:
    data = SOUNDS[format]
    for n in range(0, len(data), max(1, len(data) // 200)):
        assert isinstance(tried(data[:n], format), Decoded | DecodeRefused)
    assert isinstance(tried(data[:12], format), DecodeRefused)
