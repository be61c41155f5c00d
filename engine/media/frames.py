"""The frames of a video as parts of a prompt, with texts in between that give their times.

The texts and their places are those of llama.cpp (`mtmd_helper_video` in
tools/mtmd/mtmd-helper.cpp): `Video:` precedes the first frame, and a time such as `[1m2.50s]`
follows the first frame of each interval.
"""

import hashlib
from typing import Final

from specllama.engine.errors import invalid_request
from specllama.engine.helpers.decode.decode_jobs import Decoded, Sample
from specllama.engine.wire.media import Document, Media

HEADING: Final = "Video:"
PAIR: Final = 2  # frames that some projectors merge
SLOWEST, FASTEST = 1e-9, 1000.0  # frames per second


def video_digest(file: bytes, fps: float, interval: int) -> bytes:
    """Returns the digest of a video with these options, from the digest of its file."""
    return hashlib.sha256(b"video at %r fps, %d ms, of " % (fps, interval) + file).digest()


def times(n_frames: int, fps: float, interval: int) -> dict[int, str]:
    """Returns the texts that follow frames, by the number of the frame. `interval` is in ms; none
    if it isn't positive."""
    found: dict[int, str] = {}
    due = 0.0
    for number in range(n_frames if interval > 0 else 0):
        elapsed = number / fps
        if elapsed * 1000 >= due - 1e-3:  # the reference's numbers have 24 bits
            minutes = int(elapsed / 60)
            found[number] = f"[{minutes}m{elapsed - minutes * 60:.2f}s]"
            due += interval
    return found


def frame_parts(decoded: Decoded, job: Sample, digest: bytes, interval: int) -> Document:
    """Returns the parts for a video. Frames without a text in between are images of two frames
    each.

    Raises EngineError if `decoded` doesn't fit to `job`: the decoding process isn't trusted.
    """
    size = 3 * decoded.width * decoded.height
    if min(decoded.width, decoded.height) <= 0 or not SLOWEST <= decoded.fps <= FASTEST:
        raise invalid_request("it can't be decoded")
    n_frames, rest = divmod(len(decoded.data), size)
    if rest or not 0 < n_frames <= job.max_frames:
        raise invalid_request("it can't be decoded")
    texts = times(n_frames, decoded.fps, interval)
    parts: list[str | Media] = [HEADING]
    first = 0
    for number in range(n_frames):
        is_last = number in texts or number == n_frames - 1
        if is_last or number - first == PAIR - 1:
            parts.append(_image(decoded, digest, first, number + 1))
            first = number + 1
        if number in texts:
            parts.append(texts[number])
    return Document(parts, digest)


def _image(decoded: Decoded, digest: bytes, first: int, end: int) -> Media:
    """Returns the frames `first` up to `end`."""
    width, height = decoded.width, decoded.height
    name = b"frames %d to %d, %d x %d pixels, of " % (first, end, width, height)
    size = 3 * width * height
    return Media(
        "image",
        hashlib.sha256(name + digest).digest(),
        decoded.data[first * size : end * size],
        width,
        height,
        end - first,
    )
