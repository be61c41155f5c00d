"""Small videos, made by PyAV."""

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.video.stream import VideoStream

WIDTH, HEIGHT = 64, 48
RATE: Final = 10  # pictures per second
N_PICTURES: Final = 20
MS: Final = Fraction(1, 1000)

CONTAINERS: Final = {
    "mp4": ("mp4", "libx264"),
    "mp4 with mpeg4": ("mp4", "mpeg4"),
    "mov": ("mov", "mpeg4"),
    "webm": ("webm", "libvpx-vp9"),
    "webm with vp8": ("webm", "libvpx"),
    "matroska": ("matroska", "libx265"),
    "avi": ("avi", "mjpeg"),
    "transport stream": ("mpegts", "mpeg2video"),
    "program stream": ("mpeg", "mpeg1video"),
    "flv": ("flv", "flv"),
    "asf": ("asf", "wmv2"),
}
"""FFmpeg's names of container and encoder."""


def grey(number: int, n_pictures: int = N_PICTURES) -> int:
    """The value of all pixels of a picture of `video_file`; codecs change it a little."""
    return number * 255 // max(1, n_pictures - 1)


def video_file(
    container: str = "mp4",
    codec: str = "mpeg4",
    *,
    n_pictures: int = N_PICTURES,
    rate: int = RATE,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    times: Sequence[int] = (),
    rotation: int = 0,
    pictures: Sequence[npt.NDArray[np.uint8]] = (),
    options: dict[str, str] | None = None,
) -> bytes:
    """Returns a video of `pictures` (rows of RGB), or of grey ones that become lighter.

    `times` are those of the pictures in ms; by default `rate` per second.
    """
    width, height = size
    if codec in ("mpeg1video", "mpeg2video"):  # these have few rates
        rate = max(25, rate)
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options or {}) as out:
        stream = cast(VideoStream, out.add_stream(codec, rate=rate))
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if times:
            stream.time_base = stream.codec_context.time_base = MS
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(len(pictures) or n_pictures):
            if pictures:
                rows = pictures[number]
            else:
                rows = np.full((height, width, 3), grey(number, n_pictures), np.uint8)
            picture = av.VideoFrame.from_ndarray(rows)
            if times:
                picture.pts, picture.time_base = times[number], MS
            out.mux(stream.encode(picture))
        out.mux(stream.encode(None))
    return file.getvalue()


def sound_file(container: str = "mp4", codec: str = "aac") -> bytes:
    """Returns a sound in a container of videos."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = cast(AudioStream, out.add_stream(codec, rate=48_000))
        for start in range(0, 4800, 960):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), "<f4"), "fltp", "mono")
            frame.sample_rate, frame.pts = 48_000, start
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()
