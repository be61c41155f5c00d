"""The parts of a prompt for a video, compared with llama.cpp's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.helpers.decode.decode_jobs import Decoded, Sample
from specllama.engine.media.frames import frame_parts, times, video_digest
from specllama.engine.wire.media import Document, Media

DIGEST = b"d"
JOB = Sample(b"", "MP4", 4.0, 255, 60.0, 1 << 20, 1 << 20)


def decoded(n_frames: int, fps: float = 4.0) -> Decoded:
    """Frames of 2 x 1 pixels, each with its number."""
    return Decoded(b"".join(bytes([n]) * 6 for n in range(n_frames)), 2, 1, fps)


def shown(document: Document) -> list[str | list[int]]:
    """The texts, and the numbers of the frames of each image."""
    return [part if isinstance(part, str) else [*part.data[::6]] for part in document.parts]


def genuine(n_frames: int, fps: float, interval: int) -> list[str | int]:
    """The order of `mtmd_helper_video.read_next`, with its 32-bit numbers."""
    found: list[str | int] = ["Video:"]
    due, rate = np.float32(0), np.float32(fps)
    for number in range(n_frames):
        found.append(number)
        elapsed = np.float32(number) / rate * np.float32(1000)
        if interval > 0 and elapsed >= due:
            seconds = elapsed / np.float32(1000)
            minutes = int(seconds / 60)
            found.append(f"[{minutes}m{seconds - np.float32(minutes * 60):.2f}s]")
            due += np.float32(interval)
    return found


@given(st.integers(1, 255), st.sampled_from([0.5, 1, 2, 4, 8, 25]), st.sampled_from([0, 500, 5000]))
def test_the_order_is_that_of_llama_cpp(n_frames: int, fps: float, interval: int) -> None:
    found: list[str | int] = []
    for part in shown(frame_parts(decoded(n_frames, fps), JOB, DIGEST, interval)):
        found += [part] if isinstance(part, str) else part
    assert found == genuine(n_frames, fps, interval)


def test_frames_are_pairs_between_texts() -> None:
    found = frame_parts(decoded(24), JOB, DIGEST, 5000)
    pairs = [[n, n + 1] for n in range(1, 21, 2)]
    assert shown(found) == ["Video:", [0], "[0m0.00s]", *pairs, "[0m5.00s]", [21, 22], [23]]
    images = [part for part in found.parts if isinstance(part, Media)]
    assert [image.n_frames for image in images] == [1, *[2] * 10, 2, 1]
    assert len({image.digest for image in images}) == len(images)
    assert shown(frame_parts(decoded(3), JOB, DIGEST, 0)) == ["Video:", [0, 1], [2]]


@pytest.mark.parametrize(
    ("fps", "interval", "expected"),
    [
        (4, 0, {}),
        (4, -1, {}),
        (1, 1500, {0: "[0m0.00s]", 2: "[0m2.00s]", 3: "[0m3.00s]", 5: "[0m5.00s]"}),
        (0.05, 5000, {n: f"[{n // 3}m{n % 3 * 20}.00s]" for n in range(6)}),
        (3, 1000, {0: "[0m0.00s]", 3: "[0m1.00s]"}),
    ],
)
def test_times(fps: float, interval: int, expected: dict[int, str]) -> None:
    assert times(6, fps, interval) == expected


def test_the_digest_is_that_of_file_and_options() -> None:
    made = {video_digest(file, fps, ms) for file in (b"a", b"b") for fps in (1, 4) for ms in (0, 9)}
    assert len(made) == 8
    first, second = (
        frame_parts(each, JOB, DIGEST, 0).parts[1]
        for each in (decoded(2), Decoded(bytes(12), 1, 2, 4))
    )
    assert isinstance(first, Media)
    assert isinstance(second, Media)
    assert first.digest != second.digest


@pytest.mark.parametrize(
    "lie",
    [
        Decoded(b"", 2, 1, 4.0),
        Decoded(bytes(7), 2, 1, 4.0),
        Decoded(bytes(6), 0, 1, 4.0),
        Decoded(bytes(6), -2, -1, 4.0),
        Decoded(bytes(6), 2, 1, 0.0),
        Decoded(bytes(6), 2, 1, float("nan")),
        Decoded(bytes(6), 2, 1, float("inf")),
        Decoded(bytes(6), 2, 1, 1e-300),
        Decoded(bytes(6 * 256), 2, 1, 4.0),
    ],
)
def test_a_process_that_lies(lie: Decoded) -> None:
    with pytest.raises(EngineError, match="it can't be decoded"):
        frame_parts(lie, JOB, DIGEST, 5000)
